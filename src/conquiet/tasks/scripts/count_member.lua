-- Counts one member of a group that has ended, once; the last one enqueues the task that follows in the same step,
-- now or later.
--
-- KEYS[1] the group's record   KEYS[2] the shard of its results, its name that of the record, a colon and a number   KEYS[3] the queue's meta   KEYS[4] the events
-- KEYS[5] the record of the task that follows   KEYS[6…15] the streams of priorities 0 to 9
-- KEYS[16] what is to follow on tasks   KEYS[17] the feed of listeners   KEYS[18] the delayed set   KEYS[19] the delayed items
-- KEYS[20] the revoked tasks
-- ARGV[1] now, ms, or ''   ARGV[2] how long records are kept, ms   ARGV[3] the member's number
-- ARGV[4] '1' if it succeeded   ARGV[5] its result as JSON, or its error   ARGV[6] how many results are in a shard
--
-- Returns {how many are left, how many failed, what is to follow on the next task, or ''}, or false if there is no such
-- group. A failed member ends the group where 'onError' is 'fail': then the task that follows has failed too, and is not
-- enqueued; what is to follow on that is returned, and is kept until it is done.

local now = now_ms(ARGV[1])
local group = redis.call('HMGET', KEYS[1], 'left', 'failed', 'onError', 'nextId', 'nextPriority', 'next', 'nextName',
  'nextCanvas', 'nextDelay', 'nextDue', 'ttl', 'prolonged', 'total')
if not group[1] then return false end
-- What was accepted must end on a full server too: this write needs no memory, and allows the others.
redis.call('HDEL', KEYS[1], '')
if redis.call('HSETNX', KEYS[2], ARGV[3], ARGV[4] .. ARGV[5]) == 0 then
  return {tonumber(group[1]), tonumber(group[2]), ''}
end
-- The group's own time, as it may have members that are delayed for longer; of an earlier version it has none.
local ttl = group[11] or ARGV[2]
redis.call('PEXPIRE', KEYS[2], ttl)
redis.call('PEXPIRE', KEYS[1], ttl)
local left = redis.call('HINCRBY', KEYS[1], 'left', -1)
local failed = tonumber(group[2])
-- The other shards once a day, and for the task that follows: a group of 100,000 has 100 of them.
if left == 0 or now > (group[12] or 0) + 86400000 then
  for shard = 0, math.floor((group[13] - 1) / ARGV[6]) do redis.call('PEXPIRE', KEYS[1] .. ':' .. shard, ttl) end
  redis.call('HSET', KEYS[1], 'prolonged', now)
end
if ARGV[4] ~= '1' then failed = redis.call('HINCRBY', KEYS[1], 'failed', 1) end

local has_next, fails, follow_up = group[4] ~= '', group[3] == 'fail', ''
local function write_event(state, facts)
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'data', cjson.encode({{group[4], group[7], state}}))
  if is_listened(redis.call('HGET', KEYS[3], 'listened'), now) then
    publish(KEYS[17], {change(group[4], group[7], state, now, facts)})
  end
end
-- Whether the task that follows must not run, as its canvas was revoked.
local function is_revoked()
  for _, id in ipairs({group[4], cjson.decode(group[8]).id}) do
    if tonumber(redis.call('ZSCORE', KEYS[20], id) or 0) > now then return true end
  end
  return false
end
-- One that was revoked with its canvas says so already.
local function write_state(state, ttl, facts, ...)
  if redis.call('HMGET', KEYS[5], 'state')[1] == 'revoked' then return end
  redis.call('HSET', KEYS[5], 'state', state, 'name', group[7], 'at:' .. now .. ':' .. state, '{}', ...)
  redis.call('PEXPIRE', KEYS[5], ttl)
  write_event(state, facts)
end
if has_next and fails and ARGV[4] ~= '1' and failed == 1 then
  local why = 'member ' .. ARGV[3] .. ' of its group failed: ' .. ARGV[5]
  local state = is_revoked() and 'revoked' or 'dead_lettered'
  follow_up = string.format('{"at":%d,"canvas":', now / 1000) .. group[8] ..
    ',"state":"' .. state .. '","result":null,"error":' .. cjson.encode(why) .. '}'
  redis.call('HSET', KEYS[16], group[4], follow_up)
  write_state(state, ARGV[2], cjson.encode({error = why}), 'error', why)
elseif has_next and left == 0 and (failed == 0 or not fails) then
  -- Groups of an earlier version have neither.
  local due = math.max(now + (group[9] or 0), tonumber(group[10] or 0))
  if due > now and not is_revoked() then
    redis.call('HSET', KEYS[19], group[4], group[5] .. ':' .. group[6])
    redis.call('ZADD', KEYS[18], due, group[4])
  else
    add(KEYS[3], KEYS[6 + group[5]], group[5], group[6])
  end
  write_state('queued', due - now + ARGV[2], '{}')
elseif not has_next and left == 0 then
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'data', '[]')
end
return {left, failed, follow_up}
