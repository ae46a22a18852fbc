-- Creates the record of a group of tasks, unless it is there.
--
-- KEYS[1] the group's record
-- ARGV[1] how long it is kept, ms   ARGV[2] how many members   ARGV[3] 'fail' or 'pass': what a failed member means
-- ARGV[4] the id of the task that follows, or ''   ARGV[5] its priority   ARGV[6] its envelope   ARGV[7] its name
-- ARGV[8] its position in the canvas, as JSON   ARGV[9] how long it waits after the last member, ms
-- ARGV[10] when it is due, ms, or 0
--
-- Returns whether it is new.

if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HSET', KEYS[1], 'total', ARGV[2], 'left', ARGV[2], 'failed', 0, 'onError', ARGV[3], 'nextId', ARGV[4],
  'nextPriority', ARGV[5], 'next', ARGV[6], 'nextName', ARGV[7], 'nextCanvas', ARGV[8],
  'nextDelay', ARGV[9], 'nextDue', ARGV[10], 'ttl', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
