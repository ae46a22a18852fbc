-- Takes or renews the lease of the beat that leads, and says what is due.
--
-- KEYS[1] the beat's meta   KEYS[2] the due set   KEYS[3] the outbox
-- ARGV[1] now, ms, or ''   ARGV[2] the beat's name   ARGV[3] its epoch, or '' if it does not lead
-- ARGV[4] how long the lease is valid, ms   ARGV[5] the most schedules to return, and the most items of the outbox
-- ARGV[6] the item of the outbox behind which to begin, or ''
--
-- Returns {now; the epoch of this beat, or 0 if another one leads; the leader's name; names of due schedules; the time at which
-- the next one is due, or -1; items of the outbox as {id, fields}; since when there are schedules here, ms}.

local now, ttl = now_ms(ARGV[1]), tonumber(ARGV[4])
-- A full server refuses HSET only as the first write of a script.
redis.call('HDEL', KEYS[1], '')
redis.call('HSETNX', KEYS[1], 'sinceMs', now)
local found = redis.call('HMGET', KEYS[1], 'leader', 'epoch', 'expiresAtMs', 'ttlMs', 'sinceMs')
local expires, old_ttl = tonumber(found[3]) or 0, tonumber(found[4]) or 0
-- Set back, as by a failover: else the lease of a dead beat would last until the clock has caught up.
if expires > now + old_ttl then expires = now + old_ttl end
local is_ours = found[1] == ARGV[2] and found[2] == ARGV[3]
local next_due = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2] or '-1'
if not is_ours and expires > now then
  redis.call('HSET', KEYS[1], 'expiresAtMs', expires)
  return {now, 0, found[1] or '', {}, next_due, {}, found[5]}
end
local epoch = tonumber(found[2]) or 0
if not is_ours then epoch = epoch + 1 end
redis.call('HSET', KEYS[1], 'leader', ARGV[2], 'epoch', epoch, 'expiresAtMs', now + ttl, 'ttlMs', ttl)
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[5])
local items = redis.call('XRANGE', KEYS[3], ARGV[6] == '' and '-' or '(' .. ARGV[6], '+', 'COUNT', ARGV[5])
return {now, epoch, ARGV[2], due, next_due, items, found[5]}
