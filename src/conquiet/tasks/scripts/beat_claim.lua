-- Claims due occurrences of one schedule and enqueues their tasks, or keeps them in the outbox, all or nothing.
--
-- KEYS[1] the beat's meta   KEYS[2] the due set   KEYS[3] the schedule   KEYS[4] its history   KEYS[5] the outbox
-- then, of tasks that are enqueued here: seven keys for each, as of enqueue.lua
-- ARGV[1] now, ms, or ''   ARGV[2] the schedule's name   ARGV[3] the caller's epoch   ARGV[4] its version that the caller has seen
-- ARGV[5] the planned time that the caller has seen   ARGV[6] the time of its creation that he has seen, or ''
-- ARGV[7] the next planned time after these, ms, or ''   ARGV[8] when that is due, ms
-- ARGV[9] how many occurrences are skipped   ARGV[10] how many are claimed
-- then for each: its planned time, when it was due, the id of its task or message, how many values follow, and these: ten of a
-- task that is enqueued here, as of enqueue.lua; else fields and values of an item of the outbox
--
-- Returns 1, or 0 if the schedule was changed or claimed since, or another beat leads.

local now, name = now_ms(ARGV[1]), ARGV[2]
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[3] then return 0 end
local found = redis.call('HMGET', KEYS[3], 'version', 'planned', 'createdAtMs')
if found[1] ~= ARGV[4] or found[2] ~= ARGV[5] then return 0 end
-- Deleted and created again, it begins with the same version.
if ARGV[6] ~= '' and found[3] ~= ARGV[6] then return 0 end

local i, key, lines, last = 11, 6, {}, nil
for _ = 1, tonumber(ARGV[10]) do
  local planned, due, id, count = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local is_new = 1
  -- The first write is one that a full server refuses before anything is changed.
  if key <= #KEYS then
    is_new = enqueue_task(key - 1, i + 3)[2]
    key = key + 7
  else
    -- By the time, so that it rises also after a failover that has lost the last ones: a mark beside a queue on another
    -- server would else take a new occurrence for one that was enqueued.
    local sequence = math.max((tonumber(redis.call('HGET', KEYS[1], 'sequence')) or 0) + 1, now * 1000)
    redis.call('XADD', KEYS[5], '*', 'schedule', name, 'created', tonumber(whole(found[3])) or 0, 'planned', planned, 'id', id,
      'sequence', sequence, unpack(ARGV, i + 4, i + 3 + count))
    redis.call('HSET', KEYS[1], 'sequence', sequence)
  end
  last = {planned, id, math.max(0, now - tonumber(due))}
  lines[#lines + 1] = '{"planned":' .. planned .. ',"at":' .. string.format('%.0f', now) .. ',"drift":'
    .. string.format('%.0f', last[3]) .. ',"id":' .. cjson.encode(id) .. ',"isNew":' .. (is_new == 1 and 'true' or 'false') .. '}'
  i = i + 4 + count
end

-- As before: what is only skipped is written on a full server, too.
if ARGV[7] == '' then
  redis.call('ZREM', KEYS[2], name)
  redis.call('HDEL', KEYS[3], 'planned', 'plannedDue')
else
  redis.call('ZREM', KEYS[2], name)
  redis.call('ZADD', KEYS[2], ARGV[8], name)
  redis.call('HSET', KEYS[3], 'planned', ARGV[7], 'plannedDue', ARGV[8])
end
redis.call('HDEL', KEYS[3], 'error', 'errorAtMs')
-- What somebody has put in the place of a number begins anew.
local function add_to(field, number)
  local reply = redis.pcall('HINCRBY', KEYS[3], field, number)
  if type(reply) == 'table' and reply.err then redis.call('HSET', KEYS[3], field, number) end
end
if ARGV[9] ~= '0' then add_to('skipped', ARGV[9]) end
if last then
  add_to('runs', #lines)
  redis.call('HSET', KEYS[3], 'lastPlanned', last[1], 'lastId', last[2], 'lastAtMs', now, 'lastDriftMs', last[3])
  redis.call('LPUSH', KEYS[4], unpack(lines))
  redis.call('LTRIM', KEYS[4], 0, 99)
end
return 1
