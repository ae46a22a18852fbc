-- Takes a topic out of the registry and its meta away: from now on it is not there. What a second call needs, after a
-- crash in between, is kept until the end.
--
-- KEYS[1] the registry   KEYS[2] the meta   KEYS[3] the topic as it is being deleted   KEYS[4] its partitions
-- KEYS[5] the streams of deleted topics, by when that was: what is missing since was not lost. Until the
-- deletion has ended that is a time to come: producers that do not know of it yet may add messages.
-- ARGV[1] the topic
--
-- Returns {partition count, layout}, both false if there is no such topic.

-- First: on a full server it is allowed, and then what follows is too.
redis.call('SREM', KEYS[1], ARGV[1])
local meta = redis.call('HMGET', KEYS[2], 'partitionCount', 'layout')
if meta[1] then
  redis.call('HSET', KEYS[3], 'partitionCount', meta[1], 'layout', meta[2])
  local now, month_ms = now_ms(''), 30 * 24 * 3600000
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now - month_ms)
  for _, stream in ipairs(redis.call('SMEMBERS', KEYS[4])) do redis.call('ZADD', KEYS[5], now + month_ms, stream) end
  redis.call('PEXPIRE', KEYS[5], month_ms)
  redis.call('DEL', KEYS[2])
end
return redis.call('HMGET', KEYS[3], 'partitionCount', 'layout')
