-- Enqueues the task of a dead letter as a new one, and deletes the letter; once.
--
-- KEYS[1] the queue's meta   KEYS[2] the dead letters   KEYS[3] the stream of its priority
-- KEYS[4] the record of the new task   KEYS[5] the record of the task that became the letter   KEYS[6] the feed of listeners
-- ARGV[1] now, ms, or ''   ARGV[2] the letter's id   ARGV[3] the new task's id   ARGV[4] its envelope   ARGV[5] its priority
-- ARGV[6] how long its record is kept, ms; 0 for none   ARGV[7] its name   ARGV[8] the history's line
--
-- Returns {the id of the new task, 1}, or if the letter is not there any more {the id that it got before, or '', 0}.

local now = now_ms(ARGV[1])
if not redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[2])[1] then
  return {redis.call('HGET', KEYS[5], 'retried_as') or '', 0}
end
local _, listened = add(KEYS[1], KEYS[3], ARGV[5], ARGV[4])
redis.call('XDEL', KEYS[2], ARGV[2])
if ARGV[6] ~= '0' then
  redis.call('HSET', KEYS[4], 'state', 'queued', 'name', ARGV[7], 'at:' .. now .. ':queued', ARGV[8])
  redis.call('PEXPIRE', KEYS[4], ARGV[6])
end
if redis.call('EXISTS', KEYS[5]) == 1 then redis.call('HSET', KEYS[5], 'retried_as', ARGV[3]) end
if is_listened(listened, now) then publish(KEYS[6], {change(ARGV[3], ARGV[7], 'queued', now, ARGV[8])}) end
return {ARGV[3], 1}
