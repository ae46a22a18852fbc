-- Settles messages and reads new ones, all under the same lease: a consumer that lost it changes nothing.
--
-- KEYS[1] the lease   KEYS[2] the stream   KEYS[3] the waiting set   KEYS[4] the failures
-- KEYS[5] the dead letters   KEYS[6] the delayed set   KEYS[7] the delayed items
-- ARGV[1] the owner   ARGV[2] the epoch   ARGV[3] now, ms, or ''   ARGV[4] the group   ARGV[5] the turn
-- ARGV[6] how many to read   ARGV[7] how many bytes, but for one entry at least
-- ARGV[8] how many to ack that were delivered once   ARGV[9…] their entry ids
-- then five for each other message to settle: what, entry id, delivery count, and two more:
--   'ack'        '', ''
--   'retry'      delay in ms, failure as JSON       stays pending and waits for its time
--   'requeue'    delay in ms, item as JSON          a copy is added later, this one is acked
--   'dead_letter'  dead letter as JSON, ''            moved to the dead letters
--   'hand_back'  delivery count to set, ''          not begun: free for others
--   'begin'      '', ''                             taken up and about to be handled: delivery count + 1
--
-- Answers 'lost', 'repeated', or 'done' with the numbers of what was refused (from 0, in the order of ARGV), new entries,
-- the last entry that the group was given, or '' if new entries came or none were to be read, and the ids of further new
-- entries, which are too large for this answer. Refused are messages that were no longer the caller's, or settled before by
-- the same call, and nothing was done with them. A key of another type is an error before anything is changed.

local owner, group, now = ARGV[1], ARGV[4], now_ms(ARGV[3])
local stream = KEYS[2]
local refused_call = refusal(now)
if refused_call then return refused_call end

-- The delivery counts of what is pending at the caller, of many messages in one call; the others are asked for one by one.
local counts = {}
local function read_counts(first, last, number)
  if number < 4 then return end
  for _, pending in ipairs(redis.call('XPENDING', stream, group, first, last, 2 * number, owner)) do
    counts[pending[1]] = pending[4]
  end
end

-- A script that fails half-way keeps what it has done: what could fail is tried before anything is written.
local kinds = {[3] = 'zset', [4] = 'hash', [5] = 'stream', [6] = 'zset', [7] = 'hash'}
local needed = {ack = {4}, retry = {3, 4}, requeue = {4, 6, 7}, dead_letter = {4, 5}}
local function wrong_key(what)
  for _, number in ipairs(needed[what] or {}) do
    local kind = redis.call('TYPE', KEYS[number]).ok
    if kind ~= 'none' and kind ~= kinds[number] then
      return 'WRONGTYPE ' .. KEYS[number] .. ' is a ' .. kind .. ' instead of a ' .. kinds[number]
    end
  end
  -- May the caller ack at all? An entry of this id cannot be.
  if needed[what] then redis.call('XACK', stream, group, '0-0') end
end

local last_once, is_checked = 8 + ARGV[8], {}
for i = last_once + 1, #ARGV, 5 do
  local problem = not is_checked[ARGV[i]] and wrong_key(ARGV[i])
  if problem then return redis.error_reply(problem) end
  is_checked[ARGV[i]] = true
end

local refused, is_settled = {}, {}
local function is_ours(number, id, count)
  if not is_settled[id] and (counts[id] == tonumber(count) or not counts[id] and is_still_pending(stream, group, owner, id, count)) then
    is_settled[id] = true
    return true
  end
  refused[#refused + 1] = number
  return false
end

local acked = {}
read_counts(ARGV[9], ARGV[last_once], last_once - 8)
for i = 9, last_once do
  if is_ours(i - 9, ARGV[i], 1) then acked[#acked + 1] = ARGV[i] end
end
for start = 1, #acked, 500 do
  redis.call('XACK', stream, group, unpack(acked, start, math.min(start + 499, #acked)))
end

local function done(id, count)
  redis.call('XACK', stream, group, id)
  -- Only a message that was delivered before can have failed before.
  if tonumber(count) > 1 then redis.call('HDEL', KEYS[4], id) end
end

read_counts(ARGV[last_once + 2], ARGV[#ARGV - 3], (#ARGV - last_once) / 5)
for i = last_once + 1, #ARGV, 5 do
  local what, id, count, first, second = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  if is_ours(last_once - 8 + (i - last_once - 1) / 5, id, count) then
    if what == 'ack' then
      done(id, count)
    elseif what == 'retry' then
      redis.call('ZADD', KEYS[3], now + first, id)
      redis.call('HSET', KEYS[4], id, second)
    elseif what == 'requeue' then
      -- Entries of two partitions may have the same id, and they share the delayed set.
      local name = group .. ':' .. id .. ':' .. stream
      redis.call('HSET', KEYS[7], name, second)
      redis.call('ZADD', KEYS[6], now + first, name)
      done(id, count)
    elseif what == 'dead_letter' then
      redis.call('XADD', KEYS[5], '*', 'data', first)
      done(id, count)
    elseif what == 'hand_back' then
      redis.call('XCLAIM', stream, group, owner, 0, id, 'TIME', 0, 'RETRYCOUNT', first, 'JUSTID')
    elseif what == 'begin' then
      redis.call('XCLAIM', stream, group, owner, 0, id, 'RETRYCOUNT', tonumber(count) + 1, 'JUSTID')
    end
  end
end

-- Behind it the caller waits for new entries: asked for here, it needs no round trip of its own.
local function last_delivered()
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
    local facts = {}
    for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
    if facts['name'] == group then return facts['last-delivered-id'] end
  end
end

-- One, and then as many as its like would fit, up to ten at a time: how large an entry is, is known when it was read.
local entries, last, read, most, too_large = {}, '', 0, 1, {}
local wanted, bytes_left = tonumber(ARGV[6]), tonumber(ARGV[7])
while read < wanted and bytes_left > 0 and not too_large[1] do
  local count = math.min(most, wanted - read)
  local reply = redis.call('XREADGROUP', 'GROUP', group, owner, 'COUNT', count, 'STREAMS', stream, '>')
  local some = reply and reply[1][2] or {}
  for i = 1, #some do
    local bytes = bytes_of(some[i][2])
    if too_large[1] or (bytes > bytes_left and entries[1]) then
      too_large[#too_large + 1] = some[i][1]
    else
      entries[read + i] = some[i]
      bytes_left = bytes_left - bytes
    end
  end
  read = read + #some
  if #some < count then break end
  most = math.max(1, math.min(10, math.floor(bytes_left * read / math.max(1, ARGV[7] - bytes_left))))
end
if wanted > 0 and read == 0 then last = last_delivered() end
if #ARGV > 8 or #entries > 0 then end_turn(KEYS[1]) end
return answer('done', refused, entries, last, too_large)
