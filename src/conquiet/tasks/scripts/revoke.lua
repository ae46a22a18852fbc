-- Revokes a task, unless it has ended: one that is delayed is removed, any other is marked, and workers drop it. A delayed one
-- of a canvas is due at once, as a worker must see to what follows on it.
--
-- KEYS[1] the queue's meta   KEYS[2] the task's record   KEYS[3] the delayed set   KEYS[4] the delayed items
-- KEYS[5] the revoked tasks   KEYS[6] the events   KEYS[7] the feed of listeners   KEYS[8…17] the waiting sets
-- ARGV[1] now, ms, or ''   ARGV[2] the id of the task, or of a canvas, which is that of its last task
-- ARGV[3] for how long the mark is kept, ms, after all that waits now is due
-- ARGV[4] for how long the record of a revoked task is kept, ms   ARGV[5] the history's line   ARGV[6] why, for its record
-- ARGV[7] the name of the last task of a canvas, which is revoked before it is enqueued; else ''
--
-- Returns its state before, '' if it has no record, and whether anything was changed.

local now, id = now_ms(ARGV[1]), ARGV[2]
local state = redis.call('HGET', KEYS[2], 'state') or ''
local is_unfinished = state == 'queued' or state == 'retried' or state == 'running'
if state ~= '' and not is_unfinished then return {state, 0} end

local function last_of(set) return tonumber(redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2] or 0) end
local last = now
for number = 8, 17 do last = math.max(last, last_of(KEYS[number])) end
-- It may be a canvas: its steps have other ids.
if state == '' then last = math.max(last, last_of(KEYS[3])) end

-- The first write needs no memory; see settle_and_read.lua.
local is_delayed = redis.call('ZREM', KEYS[3], id) == 1
local is_read, envelope = pcall(cjson.decode, string.sub(redis.call('HGET', KEYS[4], id) or '', 3))
-- If it is encrypted, only a worker can read that.
local is_alone = is_delayed and is_read and not envelope.meta.canvas and not envelope.headers['encryption-key']
if is_alone then
  redis.call('HDEL', KEYS[4], id)
else
  if is_delayed then redis.call('ZADD', KEYS[3], now, id) end
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now)
  redis.call('ZADD', KEYS[5], last + ARGV[3], id)
  redis.call('HINCRBY', KEYS[1], 'changes', 1)
end
-- One that runs is revoked when its worker says so: it may end well.
local is_canvas = state == '' and ARGV[7] ~= ''
if state == 'queued' or state == 'retried' or is_canvas then
  local name = is_canvas and ARGV[7] or redis.call('HGET', KEYS[2], 'name') or ''
  redis.call('HSET', KEYS[2], 'state', 'revoked', 'name', name, 'error', ARGV[6], 'at:' .. now .. ':revoked', ARGV[5])
  -- Its last task is not enqueued while it has a record.
  redis.call('PEXPIRE', KEYS[2], is_canvas and last + ARGV[3] - now or ARGV[4])
  redis.call('XADD', KEYS[6], 'MAXLEN', '~', 10000, '*', 'data', cjson.encode({{id, name, 'revoked'}}))
  if is_listened(redis.call('HGET', KEYS[1], 'listened'), now) then
    publish(KEYS[7], {change(id, name, 'revoked', now, ARGV[5])})
  end
end
return {state, 1}
