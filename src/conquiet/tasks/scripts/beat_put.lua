-- Writes a schedule, new or changed.
--
-- KEYS[1] the names   KEYS[2] the due set   KEYS[3] the schedule
-- ARGV[1] now, ms, or ''   ARGV[2] its name   ARGV[3] its version that the caller has seen, 0 for none
-- ARGV[4] the planned time that the caller has seen, or ''   ARGV[5] its definition   ARGV[6] its next planned time, ms, or ''
-- ARGV[7] when that is due, ms   ARGV[8] whether it is enabled, 1 or 0
-- ARGV[9] planned times from before the edit that are occurrences still, with blanks between, or ''   ARGV[10] the edit, ms, or ''
-- ARGV[11] the time of its creation that the caller has seen, or ''
--
-- Returns {1, its version now}, or {0, its version} if it was changed, or claimed, since the caller has seen it.

local now = now_ms(ARGV[1])
local found = redis.call('HMGET', KEYS[3], 'version', 'planned', 'createdAtMs')
local version = tonumber(whole(found[1])) or 0
if version ~= tonumber(ARGV[3]) or whole(found[2]) ~= ARGV[4] then return {0, version} end
-- Deleted and created again, it begins with the same version.
if ARGV[11] ~= '' and found[3] ~= ARGV[11] then return {0, version} end
redis.call('HSET', KEYS[3], 'definition', ARGV[5], 'version', version + 1, 'enabled', ARGV[8], 'updatedAtMs', now)
redis.call('HSETNX', KEYS[3], 'createdAtMs', now)
redis.call('HDEL', KEYS[3], 'error', 'errorAtMs')
redis.call('ZADD', KEYS[1], 0, ARGV[2])
if ARGV[6] == '' then
  redis.call('HDEL', KEYS[3], 'planned', 'plannedDue')
  redis.call('ZREM', KEYS[2], ARGV[2])
else
  redis.call('HSET', KEYS[3], 'planned', ARGV[6], 'plannedDue', ARGV[7])
  redis.call('ZADD', KEYS[2], ARGV[7], ARGV[2])
end
if ARGV[9] == '' then
  redis.call('HDEL', KEYS[3], 'carried', 'carriedUntil')
else
  redis.call('HSET', KEYS[3], 'carried', ARGV[9], 'carriedUntil', ARGV[10])
end
return {1, version + 1}
