-- Says that consumers are alive for some time, or that they have left.
--
-- KEYS[1] the heartbeats   ARGV[1] now, ms, or ''   ARGV[2] for how long they count as alive, ms; 0: they have left
-- ARGV[3…] the consumers   Returns how many there are.

local now = now_ms(ARGV[1])
-- A full server refuses ZADD only as the first write of a script.
redis.call('ZREM', KEYS[1], '')
for i = 3, #ARGV do
  if ARGV[2] == '0' then
    redis.call('ZREM', KEYS[1], ARGV[i])
  else
    redis.call('ZADD', KEYS[1], now + ARGV[2], ARGV[i])
  end
end
return redis.call('ZCARD', KEYS[1])
