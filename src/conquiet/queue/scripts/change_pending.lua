-- Renews, releases or hands back entries, but only those that are still pending at the consumer with the same delivery
-- count: what another consumer has claimed since is left alone.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group
-- ARGV[2]  the consumer
-- ARGV[3]  'renew': idle time back to 0, the count stays
--          'release': idle since 1970, so that any claim takes it; the count stays
--          'hand_back': idle since 1970, so that any claim takes it; the count as before the delivery
-- ARGV[4…] entry id and delivery count, in turn
--
-- Returns the ids that were still pending there.

-- Redis before 7 needs this: XPENDING is not deterministic and XCLAIM writes.
if redis.replicate_commands then redis.replicate_commands() end

local stream, group, consumer, change = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local changed = {}
for i = 4, #ARGV, 2 do
  local id, count = ARGV[i], tonumber(ARGV[i + 1])
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  if pending and pending[2] == consumer and pending[4] == count then
    if change == 'renew' then
      redis.call('XCLAIM', stream, group, consumer, 0, id, 'IDLE', 0, 'JUSTID')
    elseif change == 'release' then
      redis.call('XCLAIM', stream, group, consumer, 0, id, 'TIME', 0, 'JUSTID')
    else
      redis.call('XCLAIM', stream, group, consumer, 0, id, 'TIME', 0, 'RETRYCOUNT', count - 1, 'JUSTID')
    end
    changed[#changed + 1] = id
  end
end
return changed
