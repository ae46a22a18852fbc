-- Enqueues tasks whose ids are new, now: for most of them, and in half the time of enqueue.lua.
--
-- KEYS[1] the queue's meta   KEYS[2] the feed of listeners, then for each task: the stream of its priority, its record
-- ARGV[1] now, ms, or '', then for each task: its priority, its envelope, how long its record is kept, ms, or 0 for none,
-- its id, its name

-- Until when there are listeners, of each priority that was begun; 0 if there are none.
local listened_until, changes = {}, {}
local now = ARGV[1]
if now == '' then
  local time = redis.call('TIME')
  now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
for number = 1, #KEYS / 2 - 1 do
  local stream, record, i = KEYS[2 * number + 1], KEYS[2 * number + 2], 5 * number - 3
  local listened = listened_until[ARGV[i]]
  if not listened then
    listened = tonumber(begin_priority(KEYS[1], stream, ARGV[i]) or 0)
    listened_until[ARGV[i]] = listened
  end
  -- What it is known by comes before it, as in enqueue_task.lua: what may not be recorded is not enqueued.
  local reply
  if ARGV[i + 2] ~= '0' then
    redis.call('HSET', record, 'state', 'queued', 'name', ARGV[i + 4], 'at:' .. now .. ':queued', '{}')
    reply = redis.pcall('PEXPIRE', record, ARGV[i + 2])
  end
  if type(reply) ~= 'table' then reply = redis.pcall('XADD', stream, '*', 'data', ARGV[i + 1]) end
  if type(reply) == 'table' then
    if ARGV[i + 2] ~= '0' then redis.pcall('PEXPIRE', record, 0) end
    error(reply.err)
  end
  if listened > tonumber(now) then
    changes[#changes + 1] = change(ARGV[i + 3], ARGV[i + 4], 'queued', now, '{}')
  end
end
if #changes > 0 then publish(KEYS[2], changes) end
