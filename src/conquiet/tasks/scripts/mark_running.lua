-- Writes into the record of a task that it runs, or how far it is, unless it has ended.
--
-- KEYS[1] the record   KEYS[2] the queue's meta   KEYS[3] the feed of listeners
-- ARGV[1] now, ms, or ''   ARGV[2] the task's id   ARGV[3] how long the record is kept, ms   ARGV[4…] names and values
-- Returns whether it was written.

local before = redis.pcall('HMGET', KEYS[1], 'state', 'name', 'attempt')
-- An error: what others have put in its place, of another type, is replaced when the task is settled.
local state = not before.err and before[1]
if state ~= 'queued' and state ~= 'retried' and state ~= 'running' then return 0 end
-- Late: that attempt has ended, and the task waits for the next one.
for i = 4, #ARGV, 2 do
  if state == 'retried' and ARGV[i] == 'attempt' and tonumber(ARGV[i + 1]) <= tonumber(before[3] or -1) then return 0 end
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local now = now_ms(ARGV[1])
if is_listened(redis.call('HGET', KEYS[2], 'listened'), now) then
  publish(KEYS[3], changes_of(KEYS[1], ARGV[2], before[2] or '', state, now, {unpack(ARGV, 4)}))
end
redis.call('HSET', KEYS[1], unpack(ARGV, 4))
return 1
