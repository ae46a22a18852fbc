-- Says that a member lives, forgets those that are silent, and tells who is there.
--
-- KEYS[1] the members
-- ARGV[1] the member   ARGV[2] time to live, ms; 0 to leave   ARGV[3] now, ms, or ''
--
-- Returns {the members, the member, the live ones}.

local now, ttl = now_ms(ARGV[3]), tonumber(ARGV[2])
if ttl > 0 then
  open_when_full('ZREM', KEYS[1], '')
  redis.call('ZADD', KEYS[1], now + ttl, ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ttl * 10)
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
return {KEYS[1], ARGV[1], redis.call('ZRANGE', KEYS[1], 0, -1)}
