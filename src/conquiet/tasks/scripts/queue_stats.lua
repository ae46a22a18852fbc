-- How many tasks of a queue are where.
--
-- KEYS[1] the queue's meta   KEYS[2] the dead letters   KEYS[3] the delayed set   KEYS[4] the heartbeats
-- KEYS[5…14] the streams of priorities 0 to 9   KEYS[15…24] their waiting sets   ARGV[1] now, ms, or ''
--
-- Returns {now; whether it is paused; delayed; dead letters; consumers that are alive; then for each priority in use
-- {priority, entries, of them pending, of these waiting, the id of the oldest entry or ''}}.

local now = now_ms(ARGV[1])
local stats = {
  now,
  redis.call('HEXISTS', KEYS[1], 'paused'),
  redis.call('ZCARD', KEYS[3]),
  redis.call('XLEN', KEYS[2]),
  redis.call('ZCOUNT', KEYS[4], now, '+inf'),
}
for priority = 9, 0, -1 do
  if redis.call('HEXISTS', KEYS[1], 'p' .. priority) == 1 then
    local stream = KEYS[5 + priority]
    -- There is no group if the stream was deleted by hand.
    local pending = redis.pcall('XPENDING', stream, GROUP)
    local oldest = redis.call('XRANGE', stream, '-', '+', 'COUNT', 1)[1]
    stats[#stats + 1] = {
      priority,
      redis.call('XLEN', stream),
      pending.err and 0 or pending[1],
      redis.call('ZCARD', KEYS[15 + priority]),
      oldest and oldest[1] or '',
    }
  end
end
return stats
