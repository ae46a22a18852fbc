-- Enqueues the task of an occurrence that was claimed before, once.
--
-- KEYS[1…7] as of enqueue.lua   KEYS[8] the mark of the schedule in this queue
-- ARGV[1…10] as of enqueue.lua   ARGV[11] the occurrence's number   ARGV[12] its planned time, ms
-- ARGV[13] when its schedule was created, ms   ARGV[14] how long the mark is kept, ms
--
-- Returns as enqueue.lua does.

-- Occurrences of one schedule come in their order, so that the last number says of all before it that they were enqueued. A
-- failover of the schedules' server may lose a claim: then the occurrence has a new number, and its planned time says so. A
-- schedule that was deleted and created again may have the same times once more.
local number, planned, created = string.match(redis.call('GET', KEYS[8]) or '', '^(%d+) (%d+) (%d+)$')
if number then
  if tonumber(number) >= tonumber(ARGV[11]) then return {ARGV[2], 0, 0} end
  if created == ARGV[13] and tonumber(planned) >= tonumber(ARGV[12]) then return {ARGV[2], 0, 0} end
end
local enqueued = enqueue_task(0, 0)
redis.call('SET', KEYS[8], ARGV[11] .. ' ' .. ARGV[12] .. ' ' .. ARGV[13], 'PX', ARGV[14])
return enqueued
