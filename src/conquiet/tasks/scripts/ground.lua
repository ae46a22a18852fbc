-- Stands behind adding.lua before every script that does more than that.

local WAITING = '@waiting'

-- The caller may give another time, as tests do; an empty string means the server's.
local function now_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- A whole number as scripts write it; '' for what somebody else has put in its place, or nothing.
local function whole(text)
  text = text or ''
  if #text > 15 or text == '-0' or not string.match(text, '^-?%d+$') then return '' end
  return string.format('%.0f', tonumber(text)) == text and text or ''
end

-- Adds an entry to the stream of a priority. Returns its id, and the time until which events are to be written, ms, or nil.
local function add(meta, stream, priority, data)
  local listened = begin_priority(meta, stream, priority)
  return redis.call('XADD', stream, '*', 'data', data), listened
end

-- Whether a call has failed because the group is not there: the stream was deleted by hand.
local function has_no_group(reply)
  if not (type(reply) == 'table' and reply.err) then return false end
  if not string.find(reply.err, 'NOGROUP', 1, true) then error(reply.err) end
  return true
end

-- What is pending of an entry: {id, consumer, idle time, delivery count}, or nil.
local function pending_of(stream, id)
  local reply = redis.pcall('XPENDING', stream, GROUP, id, id, 1)
  return not has_no_group(reply) and reply[1] or nil
end

-- Lets a pending entry wait until `due`: no worker's now, and free for all of them then.
local function wait(stream, waiting, id, count, due)
  redis.call('XCLAIM', stream, GROUP, WAITING, 0, id, 'RETRYCOUNT', count, 'JUSTID')
  redis.call('ZADD', waiting, due, id)
end

-- Whether events of the queue are to be written; `listened` is the field of its meta.
local function is_listened(listened, now) return listened and tonumber(listened) > now end

-- The events in the fields that are about to be written to a record, names and values: each new step, and progress.
local function changes_of(record, id, name, state, now, fields)
  local changes = {}
  for i = 1, #fields, 2 do
    local ms, step = string.match(fields[i], '^at:(%d+):(.*)$')
    if step == 'running' and redis.call('HEXISTS', record, fields[i]) == 1 then step = nil end
    -- A revoked task is revoked once, though its worker says so too.
    if step and (step == 'running' or step ~= state) then
      changes[#changes + 1] = change(id, name, step, ms, fields[i + 1])
    elseif fields[i] == 'progress' then
      changes[#changes + 1] = change(id, name, 'progress', now, fields[i + 1])
    end
  end
  return changes
end

