-- Settles tasks, adds delayed ones that are due, and reads others: of each priority first what waited and is due, then what
-- is new, and nothing of a lower priority before a higher one is empty.
--
-- KEYS[1] the queue's meta   KEYS[2] the dead letters   KEYS[3] the events   KEYS[4] the delayed set
-- KEYS[5] the delayed items   KEYS[6…15] the streams of priorities 0 to 9   KEYS[16…25] their waiting sets
-- KEYS[26] what is to follow on tasks   KEYS[27…] the records of settled tasks   and last the feed of listeners
-- ARGV[1] now, ms, or ''   ARGV[2] the consumer   ARGV[3] how many to read   ARGV[4] read no more after so many bytes
-- ARGV[5] the event to write, without what is refused, or ''
-- then for each task to settle: what, priority, entry id, delivery count, and two more, its id, what is to follow or '', the
-- number of its record among KEYS[27…] or 0, for how long that is kept, ms, how many arguments there are for it, and these:
-- names and values
--   'ack'          '', ''                    done: acked and deleted
--   'retry'        delay, ms, ''             waits for its time
--   'dead_letter'  dead letter as JSON, ''   moved to the dead letters
--   'hand_back'    delay, ms, delivery count to set     not begun: free for others then
--   'begin'        '', ''                    waited, and is about to be run: delivery count + 1
--
-- Returns {the numbers of what was refused, from 0; entries; ms until something is due, or -1; whether the queue is paused;
-- how many changes by control there were}. An entry is {priority, id, fields, delivery count, whether it is counted when it
-- begins}. Refused is what was no longer pending at the consumer with this delivery count; nothing was done with it.

local now, consumer = now_ms(ARGV[1]), ARGV[2]
local refused, is_refused, number, i = {}, {}, 0, 6
-- Of each priority: delivery counts of what is pending at the consumer, false for what was settled; and what to ack.
local counts, acked = {}, {}

-- One XPENDING for each task takes a third of the script's time; of many tasks, one for all.
local function count_of(priority, stream, id)
  if not counts[priority] then
    counts[priority] = {}
    if #ARGV > 100 then
      local page = redis.pcall('XPENDING', stream, GROUP, '-', '+', 1000, consumer)
      for _, pending in ipairs(has_no_group(page) and {} or page) do counts[priority][pending[1]] = pending[4] end
    end
  end
  if counts[priority][id] == nil then
    local pending = pending_of(stream, id)
    counts[priority][id] = pending and pending[2] == consumer and pending[4] or false
  end
  return counts[priority][id]
end

local function read_meta()
  return redis.call('HMGET', KEYS[1], 'paused', 'changes', 'p9', 'p8', 'p7', 'p6', 'p5', 'p4', 'p3', 'p2', 'p1', 'p0', 'listened')
end
-- What others have put in the place of a record, of another type, is replaced: it would stop the whole queue.
local function replace_foreign(record, reply)
  if not (type(reply) == 'table' and reply.err) then return false end
  if not string.find(reply.err, 'WRONGTYPE', 1, true) then error(reply.err) end
  -- As DEL, which no worker needs otherwise.
  redis.call('PEXPIRE', record, 0)
  return true
end

local meta = read_meta()
local listened = is_listened(meta[13], now)
-- For listeners, and tasks without a record by their ids.
local changes, unrecorded = {}, {}

-- A full server refuses a command that may need memory only as the first write of a script; this one needs none. What takes
-- tasks away is for a full server most of all, and a delayed task was accepted before.
redis.call('ZREM', KEYS[4], '')

while i <= #ARGV do
  local what, priority, id, count, first = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4]
  local stream, waiting = KEYS[6 + priority], KEYS[16 + priority]
  local record, fields = tonumber(ARGV[i + 8]), tonumber(ARGV[i + 10])
  if count_of(priority, stream, id) ~= count then
    refused[#refused + 1] = number
    is_refused[ARGV[i + 6]] = true
  else
    if listened and record > 0 then
      local before = redis.pcall('HMGET', KEYS[26 + record], 'name', 'state')
      if replace_foreign(KEYS[26 + record], before) then before = {} end
      local written = {unpack(ARGV, i + 11, i + 10 + fields)}
      for _, one in ipairs(changes_of(KEYS[26 + record], ARGV[i + 6], before[1] or '', before[2], now, written)) do
        changes[#changes + 1] = one
      end
    elseif listened then
      unrecorded[ARGV[i + 6]] = cjson.encode({worker = consumer, attempt = count - 1})
    end
    -- The record first: no ack without a result.
    if record > 0 and fields > 0 then
      local reply = redis.pcall('HSET', KEYS[26 + record], unpack(ARGV, i + 11, i + 10 + fields))
      if replace_foreign(KEYS[26 + record], reply) then
        redis.call('HSET', KEYS[26 + record], unpack(ARGV, i + 11, i + 10 + fields))
      end
      redis.call('PEXPIRE', KEYS[26 + record], ARGV[i + 9])
    end
    -- In the same step as the ack: if this worker dies then, another one does it.
    if ARGV[i + 7] ~= '' then redis.call('HSET', KEYS[26], ARGV[i + 6], ARGV[i + 7]) end
    if what == 'retry' then
      wait(stream, waiting, id, count, now + first)
    elseif what == 'hand_back' then
      wait(stream, waiting, id, ARGV[i + 5], now + first)
    elseif what == 'begin' then
      redis.call('XCLAIM', stream, GROUP, consumer, 0, id, 'RETRYCOUNT', count + 1, 'JUSTID')
    else
      if what == 'dead_letter' then redis.call('XADD', KEYS[2], '*', 'data', first) end
      acked[priority] = acked[priority] or {}
      table.insert(acked[priority], id)
    end
    counts[priority][id] = false
  end
  number, i = number + 1, i + 11 + fields
end
for priority, ids in pairs(acked) do
  for first = 1, #ids, 500 do
    local last = math.min(first + 499, #ids)
    redis.call('XACK', KEYS[6 + priority], GROUP, unpack(ids, first, last))
    redis.call('XDEL', KEYS[6 + priority], unpack(ids, first, last))
  end
end
local event = ARGV[5]
if event ~= '' and #refused > 0 then
  local kept = {}
  for _, one in ipairs(cjson.decode(event)) do
    if not is_refused[one[1]] then kept[#kept + 1] = one end
  end
  event = #kept > 0 and cjson.encode(kept) or ''
end
if event ~= '' then redis.call('XADD', KEYS[3], 'MAXLEN', '~', 10000, '*', 'data', event) end
if listened then
  for _, one in ipairs(next(unrecorded) and event ~= '' and cjson.decode(event) or {}) do
    local facts = unrecorded[one[1]]
    if facts then changes[#changes + 1] = change(one[1], one[2], one[3], now, facts) end
  end
  publish(KEYS[#KEYS], changes)
end

for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, 100)) do
  local priority, data = string.match(redis.call('HGET', KEYS[5], id) or '', '^(%d):(.*)$')
  if priority then
    add(KEYS[1], KEYS[6 + priority], priority, data)
    redis.call('ZREM', KEYS[4], id)
    redis.call('HDEL', KEYS[5], id)
    meta = nil
  else
    -- Not what this version writes: it stays, and delays no others.
    redis.call('ZADD', KEYS[4], now + 60000, id)
  end
end

-- What was added may be of a priority that is in use since.
meta = meta or read_meta()
local entries, wanted, bytes_left = {}, tonumber(ARGV[3]), tonumber(ARGV[4])
if meta[1] then wanted = 0 end

local function take(priority, id, fields, count, has_waited)
  entries[#entries + 1] = {priority, id, fields, count, has_waited}
  for _, part in ipairs(fields) do bytes_left = bytes_left - #part end
end

local function is_full() return #entries >= wanted or bytes_left <= 0 end

local next_due = -1
local function due_in(set)
  local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
  if first then
    local left = math.max(0, tonumber(first) - now)
    if next_due < 0 or left < next_due then next_due = left end
  end
end

for position = 3, 12 do
  if meta[position] then
    local priority = 12 - position
    local stream, waiting = KEYS[6 + priority], KEYS[16 + priority]
    if not is_full() then
      for _, id in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', now, 'LIMIT', 0, wanted - #entries)) do
        if is_full() then break end
        local pending = pending_of(stream, id)
        local entry = pending and redis.call('XCLAIM', stream, GROUP, consumer, 0, id, 'RETRYCOUNT', pending[4])[1]
        if entry then
          take(priority, id, entry[2], pending[4], 1)
        else
          -- Deleted by hand; Redis 6.2 would keep it pending for ever.
          redis.call('XACK', stream, GROUP, id)
        end
        redis.call('ZREM', waiting, id)
      end
    end
    -- One, and then as many of that size as would fit, up to ten at a time: only what was read says how large it is.
    while not is_full() do
      local used = math.max(1, ARGV[4] - bytes_left)
      local most = math.max(1, math.min(10, math.floor(bytes_left * #entries / used)))
      local count = math.min(most, wanted - #entries)
      local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', stream, '>')
      if has_no_group(reply) then
        redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
        reply = redis.call('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', count, 'STREAMS', stream, '>')
      end
      local some = reply and reply[1][2] or {}
      for _, entry in ipairs(some) do take(priority, entry[1], entry[2], 1, 0) end
      if #some < count then break end
    end
    due_in(waiting)
  end
end
due_in(KEYS[4])
return {refused, entries, next_due, meta[1] and 1 or 0, tonumber(meta[2] or 0)}
