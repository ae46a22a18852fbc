-- Enqueues one task whose id is new, now, where nothing else is to be done: in two thirds of the time of enqueue_new.lua, as it
-- defines no function, which the server would make anew with each run.
--
-- KEYS[1] the queue's meta   KEYS[2] the stream of its priority   KEYS[3] its record
-- ARGV[1] the meta's field of its priority   ARGV[2] its envelope
-- ARGV[3] how long its record is kept, ms, or 0 for none   ARGV[4] its name
--
-- Returns 1. Or, when enqueue_new.lua has to do it, and nothing was done: 0 if there are listeners, -1 if the priority is new.

-- Redis before 7, which has no number, needs this: the entry's id is not deterministic.
if not redis.REDIS_VERSION_NUM then redis.replicate_commands() end

local known = redis.call('HMGET', KEYS[1], ARGV[1], 'listened')
if not known[1] then return -1 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if known[2] and (tonumber(known[2]) or 0) > now then return 0 end

-- What it is known by comes before it, as in enqueue_task.lua: what may not be recorded is not enqueued.
local reply
if ARGV[3] ~= '0' then
  redis.call('HSET', KEYS[3], 'state', 'queued', 'name', ARGV[4], 'at:' .. string.format('%.0f', now) .. ':queued', '{}')
  reply = redis.pcall('PEXPIRE', KEYS[3], ARGV[3])
end
if type(reply) ~= 'table' then reply = redis.pcall('XADD', KEYS[2], '*', 'data', ARGV[2]) end
if type(reply) == 'table' then
  if ARGV[3] ~= '0' then redis.pcall('PEXPIRE', KEYS[3], 0) end
  error(reply.err)
end
return 1
