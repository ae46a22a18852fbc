-- Looks at a schedule that cannot be claimed again later: its planned time stays, so that nothing of it is missed.
--
-- KEYS[1] the beat's meta   KEYS[2] the due set   KEYS[3] the schedule
-- ARGV[1] now, ms, or ''   ARGV[2] its name   ARGV[3] the caller's epoch   ARGV[4] its version that the caller has seen
-- ARGV[5] for how long, ms, or '' to note the error alone   ARGV[6] the error, or '' if there is none any more
--
-- Returns whether it was.

local now = now_ms(ARGV[1])
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[3] then return 0 end
local found = redis.pcall('HMGET', KEYS[3], 'version', 'planned')
-- Of another type: somebody has written it by hand, and may delete it.
if found.err then
  if not string.find(found.err, 'WRONGTYPE', 1, true) or ARGV[4] ~= '' then error(found.err) end
  redis.call('ZREM', KEYS[2], ARGV[2])
  redis.call('ZADD', KEYS[2], now + (tonumber(ARGV[5]) or 0), ARGV[2])
  return 1
end
if whole(found[1]) ~= ARGV[4] then return 0 end
-- A full server refuses ZADD only as the first write of a script.
redis.call('ZREM', KEYS[2], ARGV[5] == '' and '' or ARGV[2])
-- Without a planned time somebody has written it by hand: it is due again when it is applied.
if whole(found[2]) ~= '' and ARGV[5] ~= '' then redis.call('ZADD', KEYS[2], now + ARGV[5], ARGV[2]) end
if found[1] and ARGV[6] == '' then
  redis.call('HDEL', KEYS[3], 'error', 'errorAtMs')
elseif found[1] then
  redis.call('HSET', KEYS[3], 'error', ARGV[6], 'errorAtMs', now)
end
return 1
