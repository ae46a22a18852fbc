-- Says that a member lives and how many partitions it may own, forgets those that are silent, and returns who is there.
--
-- KEYS[1] the members   KEYS[2] the limits of those that have one
-- ARGV[1] the member   ARGV[2] time to live, ms; 0 to leave   ARGV[3] now, ms, or ''
-- ARGV[4] the most partitions that it may own, '' for any number
--
-- Returns {the members, the member, the live ones, names and limits in turn}.

local now, ttl = now_ms(ARGV[3]), tonumber(ARGV[2])
if ttl > 0 then
  open_when_full('ZREM', KEYS[1], '')
  redis.call('ZADD', KEYS[1], now + ttl, ARGV[1])
  redis.call('PEXPIRE', KEYS[1], ttl * 10)
  -- The clock was set back, as by a failover: one that died before that would have its share until it has caught up.
  local members, latest = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), now + ttl * 10
  for i = 1, #members, 2 do
    if tonumber(members[i + 1]) > latest then redis.call('ZADD', KEYS[1], latest, members[i]) end
  end
else
  redis.call('ZREM', KEYS[1], ARGV[1])
end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local live, is_live = redis.call('ZRANGE', KEYS[1], 0, -1), {}
for _, name in ipairs(live) do is_live[name] = true end
if ttl > 0 and ARGV[4] ~= '' then
  redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
  redis.call('PEXPIRE', KEYS[2], ttl * 10)
else
  redis.call('ZREM', KEYS[2], ARGV[1])
end
local limits = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #limits, 2 do
  if not is_live[limits[i]] then redis.call('ZREM', KEYS[2], limits[i]) end
end
return {KEYS[1], ARGV[1], live, limits}
