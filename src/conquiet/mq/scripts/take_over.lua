-- Takes one page of the partition's pending entries, whoever had them; entries that wait for their retry stay. An entry
-- that was delivered before may have killed who had it: it is taken alone, so that its neighbours are not counted as
-- delivered each time that it kills again.
--
-- KEYS[1] the lease   KEYS[2] the stream   KEYS[3] the waiting set   KEYS[4] the failures
-- ARGV[1] the owner   ARGV[2] the epoch   ARGV[3] now, ms, or ''   ARGV[4] the group
-- ARGV[5] the turn   ARGV[6] where to begin: '-' or '(' and an entry id   ARGV[7] how many
--
-- Returns false if the lease is lost, 0 if the call is repeated, else {last id seen or '', entries, ids that wait, ids
-- that are gone}.

local owner, group = ARGV[1], ARGV[4]
if not owns(KEYS[1], owner, ARGV[2], now_ms(ARGV[3])) then return false end
if is_repeated(KEYS[1], ARGV[5]) then return 0 end
local last, entries, waiting, gone = '', {}, {}, {}
for _, pending in ipairs(redis.call('XPENDING', KEYS[2], group, ARGV[6], '+', ARGV[7])) do
  local is_waiting = redis.call('ZSCORE', KEYS[3], pending[1])
  local was_delivered = not is_waiting and pending[4] > 0
  if was_delivered and #entries > 0 then break end
  last = pending[1]
  if is_waiting then
    waiting[#waiting + 1] = last
  else
    local entry = claim(KEYS[2], group, owner, last, KEYS[4])
    if entry then entries[#entries + 1] = entry else gone[#gone + 1] = last end
  end
  if was_delivered and #entries > 0 then break end
end
if #entries + #gone > 0 then end_turn(KEYS[1]) end
return {last, entries, waiting, gone}
