-- Acquires a free or expired lease, or extends the caller's own.
--
-- KEYS[1] the lease   KEYS[2] the epoch counter
-- ARGV[1] the owner   ARGV[2] time to live, ms   ARGV[3] now, ms, or ''
--
-- Returns the epoch, or false if somebody else holds the lease.

local owner, now = ARGV[1], now_ms(ARGV[3])
local held = redis.call('HMGET', KEYS[1], 'owner', 'epoch', 'expiresAtMs')
local is_held = held[1] and tonumber(held[3]) > now
if is_held and held[1] ~= owner then return false end
local epoch = is_held and held[2] or tostring(redis.call('INCR', KEYS[2]))
if not is_held then redis.call('HSET', KEYS[1], 'owner', owner, 'epoch', epoch, 'acquiredAtMs', now) end
redis.call('HSET', KEYS[1], 'expiresAtMs', now + ARGV[2], 'turn', 0)
-- Only to clean up: whether it is held is said by expiresAtMs.
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return tonumber(epoch)
