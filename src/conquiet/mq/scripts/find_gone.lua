-- Says which of some entries neither wait for their retry nor are pending: others have acked them, or deleted them.
--
-- KEYS[1] the lease   KEYS[2] the stream   KEYS[3] the waiting set   KEYS[4] the failures
-- ARGV[1] the owner   ARGV[2] the epoch   ARGV[3] now, ms, or ''   ARGV[4] the group   ARGV[5] the turn   ARGV[6…] entry ids
--
-- Answers 'lost', 'repeated', or 'done' with those ids. Changes nothing.

local refused = refusal(now_ms(ARGV[3]))
if refused then return refused end
local gone = {}
for i = 6, #ARGV do
  local waits = redis.call('ZSCORE', KEYS[3], ARGV[i])
  if not waits and #redis.call('XPENDING', KEYS[2], ARGV[4], ARGV[i], ARGV[i], 1) == 0 then gone[#gone + 1] = ARGV[i] end
end
return answer('done', gone)
