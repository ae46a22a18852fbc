-- Frees what is pending at consumers that are dead: not alive by their heartbeat, or named by the caller. It waits and is
-- due at once. Consumers without a heartbeat that have nothing pending are deleted.
--
-- KEYS[1] the queue's meta   KEYS[2] the heartbeats   KEYS[3…12] the streams of priorities 0 to 9
-- KEYS[13…22] their waiting sets
-- ARGV[1] now, ms, or ''   ARGV[2] the most to free in this call
-- ARGV[3] 1 if the caller knows that what the next ones have was not begun   ARGV[4…] consumers that are known to be dead
--
-- A task that was begun and has a visibility timeout is due when it was pending for that long.
-- Returns {consumer, priority, entry id, delivery count} for each. Taking counts nothing: only 'begin' does. A first delivery
-- was counted as it was read; that is taken back if it was not begun.

local now, most = now_ms(ARGV[1]), tonumber(ARGV[2])
local freed, is_named = {}, {}
for i = 4, #ARGV do is_named[ARGV[i]] = true end
redis.call('ZREM', KEYS[2], '')

local function due_of(stream, id, idle)
  local entry = redis.call('XRANGE', stream, id, id)[1]
  local is_json, envelope = pcall(cjson.decode, entry and entry[2][2] or '')
  local timeout = is_json and type(envelope) == 'table' and tonumber(envelope['visibilityTimeout']) or 0
  return math.max(now, now - idle + timeout)
end

for priority = 9, 0, -1 do
  local stream, waiting = KEYS[3 + priority], KEYS[13 + priority]
  local consumers = {}
  if redis.call('HEXISTS', KEYS[1], 'p' .. priority) == 1 then
    -- There is no group if the stream was deleted by hand.
    local reply = redis.pcall('XINFO', 'CONSUMERS', stream, GROUP)
    consumers = reply.err and {} or reply
  end
  for _, info in ipairs(consumers) do
    local facts = {}
    for i = 1, #info, 2 do facts[info[i]] = info[i + 1] end
    local name = facts['name']
    local until_ms = tonumber(redis.call('ZSCORE', KEYS[2], name) or 0)
    if name ~= WAITING and (is_named[name] or until_ms <= now) then
      local page = {}
      if facts['pending'] > 0 and #freed < most then
        page = redis.call('XPENDING', stream, GROUP, '-', '+', most - #freed, name)
      end
      for _, pending in ipairs(page) do
        local count, due = pending[4], now
        if is_named[name] and ARGV[3] == '1' then
          if count == 1 then count = 0 end
        else
          due = due_of(stream, pending[1], pending[3])
        end
        wait(stream, waiting, pending[1], count, due)
        freed[#freed + 1] = {name, priority, pending[1], count}
      end
      if #page == facts['pending'] then redis.call('XGROUP', 'DELCONSUMER', stream, GROUP, name) end
    end
  end
end
-- Those that died without anything pending, or never read.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 3600000)
return freed
