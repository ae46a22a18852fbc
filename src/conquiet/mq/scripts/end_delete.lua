-- Forgets a topic whose keys are deleted, and notes when its streams were: what is missing since was not lost.
--
-- KEYS[1] the topic as it was being deleted   KEYS[2] its partitions   KEYS[3] the streams of deleted topics, by when that was

local streams = redis.call('SMEMBERS', KEYS[2])
-- First: on a full server it is allowed, and then what follows is too.
redis.call('DEL', KEYS[1], KEYS[2])
local now = now_ms('')
for _, stream in ipairs(streams) do redis.call('ZADD', KEYS[3], now, stream) end
if #streams > 0 then redis.call('PEXPIRE', KEYS[3], 30 * 24 * 3600000) end
