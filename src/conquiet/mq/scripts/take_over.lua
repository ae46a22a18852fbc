-- Takes one page of the partition's pending entries, of any consumer; entries that wait for their retry stay. Taking
-- counts nothing: only 'begin' of settle_and_read does, so that an entry that kills its consumer does not count for the others.
-- Of an owner that works already: only what was not touched for so long that nobody has it in hand: other consumers are
-- dead then, and what is pending at the owner was given to its name by hand.
--
-- KEYS[1] the lease   KEYS[2] the stream   KEYS[3] the waiting set   KEYS[4] the failures
-- ARGV[1] the owner   ARGV[2] the epoch   ARGV[3] now, ms, or ''   ARGV[4] the group
-- ARGV[5] the turn   ARGV[6] where to begin: '-' or '(' and an entry id   ARGV[7] how many
-- ARGV[8] no further one after so many bytes   ARGV[9] take only what was idle for so long, ms; '' to take all
-- ARGV[10…] with an idle time: the ids that the owner has in flight
--
-- Answers 'lost', 'repeated', or 'done' with the last id seen or '', entries, ids that wait, and ids that are gone.

local owner, group = ARGV[1], ARGV[4]
local refused = refusal(now_ms(ARGV[3]))
if refused then return refused end
local last, entries, waiting, gone, bytes = '', {}, {}, {}, 0
local is_first = ARGV[9] == ''
local in_flight = {}
for i = 10, #ARGV do in_flight[ARGV[i]] = true end
local page
if is_first then
  page = redis.call('XPENDING', KEYS[2], group, ARGV[6], '+', ARGV[7])
else
  page = redis.call('XPENDING', KEYS[2], group, 'IDLE', ARGV[9], ARGV[6], '+', ARGV[7])
end
for _, pending in ipairs(page) do
  if bytes >= tonumber(ARGV[8]) then break end
  last = pending[1]
  local is_own, waits = not is_first and pending[2] == owner, redis.call('ZSCORE', KEYS[3], last)
  if is_own and (waits or in_flight[last] or pending[3] > 315360000000) then
    -- The owner knows of it; what it handed back, as for a later version, is idle since 1970.
  elseif waits then
    waiting[#waiting + 1] = last
  else
    local entry = claim(KEYS[2], group, owner, last, pending[4], KEYS[4])
    if entry then
      entries[#entries + 1] = entry
      bytes = bytes + bytes_of(entry[2])
    else
      gone[#gone + 1] = last
    end
  end
end
if last == '' then
  -- The end of the list: the names that were taken over from have nothing pending now.
  for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[2], group)) do
    local consumer = {}
    for i = 1, #info, 2 do consumer[info[i]] = info[i + 1] end
    if consumer['pending'] == 0 and consumer['name'] ~= owner then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[2], group, consumer['name'])
    end
  end
end
if #entries + #gone > 0 then end_turn(KEYS[1]) end
return answer('done', last, entries, waiting, gone)
