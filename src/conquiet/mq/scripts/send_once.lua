-- Adds an entry unless the same dedupe id was added within its window.
--
-- KEYS[1] the stream   KEYS[2] the dedupe ids   KEYS[3] until when each is known
-- ARGV[1] data   ARGV[2] the dedupe id   ARGV[3] window, ms   ARGV[4] now, ms, or ''
--
-- Returns {entry id, 1 if it was added now}.

local id, window, now = ARGV[2], tonumber(ARGV[3]), now_ms(ARGV[4])
local known_until = redis.call('ZSCORE', KEYS[3], id)
if known_until and tonumber(known_until) > now then return {redis.call('HGET', KEYS[2], id), 0} end
-- More are forgotten than added, so that the set never grows beyond its window.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 10)) do
  redis.call('ZREM', KEYS[3], old)
  redis.call('HDEL', KEYS[2], old)
end
local entry_id = redis.call('XADD', KEYS[1], '*', 'data', ARGV[1])
redis.call('HSET', KEYS[2], id, entry_id)
redis.call('ZADD', KEYS[3], now + window, id)
-- Never shorter than a producer with a longer window has asked for.
for i = 2, 3 do redis.call('PEXPIRE', KEYS[i], math.max(window, redis.call('PTTL', KEYS[i]))) end
return {entry_id, 1}
