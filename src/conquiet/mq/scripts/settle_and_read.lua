-- Settles messages and reads new ones, all under the same lease: a consumer that lost it changes nothing.
--
-- KEYS[1] the lease   KEYS[2] the stream   KEYS[3] the waiting set   KEYS[4] the failures
-- KEYS[5] the dead letters   KEYS[6] the delayed set   KEYS[7] the delayed items
-- ARGV[1] the owner   ARGV[2] the epoch   ARGV[3] now, ms, or ''   ARGV[4] the group   ARGV[5] the turn
-- ARGV[6] how many to read   ARGV[7…] five for each message to settle: what, entry id, delivery count, and two more:
--   'ack'        '', ''
--   'retry'      delay in ms, failure as JSON       stays pending and waits for its time
--   'requeue'    delay in ms, item as JSON          a copy is added later, this one is acked
--   'dead'       dead letter as JSON, ''            moved to the dead letters
--   'hand_back'  '', ''                             not begun: delivery count as before, free for others
--
-- Returns false if the lease is lost, 0 if the call is repeated, else {1 or 0 for each settled message, new entries}; 0
-- says that the message was no longer the caller's, and nothing was done with it.

local owner, group, now = ARGV[1], ARGV[4], now_ms(ARGV[3])
local stream = KEYS[2]
if not owns(KEYS[1], owner, ARGV[2], now) then return false end
if is_repeated(KEYS[1], ARGV[5]) then return 0 end

-- What the caller holds, for all messages in one look; one that is not in it is looked for by itself.
local held = {}
if #ARGV >= 7 + 5 * 4 then
  local last = #ARGV - 3
  local limit = 2 * math.floor((#ARGV - 6) / 5)
  for _, pending in ipairs(redis.call('XPENDING', stream, group, ARGV[8], ARGV[last], limit, owner)) do
    held[pending[1]] = pending[4]
  end
end

local acked = {}
local function done(id, count)
  acked[#acked + 1] = id
  -- Only a message that was delivered before can have failed before.
  if tonumber(count) > 1 then redis.call('HDEL', KEYS[4], id) end
end

local settled = {}
for i = 7, #ARGV, 5 do
  local what, id, count, first, second = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local is_held = held[id] == tonumber(count) or (not held[id] and holds(stream, group, owner, id, count))
  settled[#settled + 1] = is_held and 1 or 0
  if is_held then
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
    elseif what == 'dead' then
      redis.call('XADD', KEYS[5], '*', 'data', first)
      done(id, count)
    elseif what == 'hand_back' then
      redis.call('XCLAIM', stream, group, owner, 0, id, 'TIME', 0, 'RETRYCOUNT', tonumber(count) - 1, 'JUSTID')
    end
  end
end

for start = 1, #acked, 500 do
  redis.call('XACK', stream, group, unpack(acked, start, math.min(start + 499, #acked)))
end

local entries = {}
if tonumber(ARGV[6]) > 0 then
  local reply = redis.call('XREADGROUP', 'GROUP', group, owner, 'COUNT', ARGV[6], 'STREAMS', stream, '>')
  if reply then entries = reply[1][2] end
end
if #settled + #entries > 0 then end_turn(KEYS[1]) end
return {settled, entries}
