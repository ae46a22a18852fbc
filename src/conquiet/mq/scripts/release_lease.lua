-- Gives up the caller's lease, and forgets its name in the group unless something is pending there.
--
-- KEYS[1] the lease   KEYS[2] the stream
-- ARGV[1] the owner   ARGV[2] the epoch   ARGV[3] now, ms, or ''   ARGV[4] the group
--
-- Returns {the lease, the epoch, 1, or 0 if it was not the caller's any more}.

local owner, group = ARGV[1], ARGV[4]
if not owns(KEYS[1], owner, ARGV[2], now_ms(ARGV[3])) then return {KEYS[1], ARGV[2], 0} end
open_when_full('HDEL', KEYS[1], '')
-- A stream or a group that was deleted has no names.
local pending = redis.pcall('XPENDING', KEYS[2], group, '-', '+', 1, owner)
if not pending.err and #pending == 0 then redis.call('XGROUP', 'DELCONSUMER', KEYS[2], group, owner) end
return {KEYS[1], ARGV[2], redis.call('DEL', KEYS[1])}
