-- Extends the caller's lease and keeps the messages in flight alive: idle time 0, the count stays.
--
-- KEYS[1] the lease   KEYS[2] the stream
-- ARGV[1] the owner   ARGV[2] the epoch   ARGV[3] now, ms, or ''   ARGV[4] time to live, ms   ARGV[5] the group
-- ARGV[6…] entry id and delivery count, in turn
--
-- Returns {the lease, the epoch, 1, or 0 if it is lost}.

local owner, now = ARGV[1], now_ms(ARGV[3])
if not owns(KEYS[1], owner, ARGV[2], now) then return {KEYS[1], ARGV[2], 0} end
open_when_full('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'expiresAtMs', now + ARGV[4], 'ttlMs', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[4] * 2)
-- Its worker reports a stream that was deleted: the lease is as good as it was.
pcall(function()
  for i = 6, #ARGV, 2 do
    if is_still_pending(KEYS[2], ARGV[5], owner, ARGV[i], ARGV[i + 1]) then
      redis.call('XCLAIM', KEYS[2], ARGV[5], owner, 0, ARGV[i], 'IDLE', 0, 'JUSTID')
    end
  end
end)
return {KEYS[1], ARGV[2], 1}
