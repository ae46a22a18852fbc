-- Moves rows that a task of an earlier run has added to those that any task of this run may have instead of adding its own.
--
-- KEYS[1]  the runs   KEYS[2]  rows of earlier runs: both as in begin_run.lua
-- KEYS[3]  what the task has added, as in add_rows_of_task.lua
-- ARGV[1]  window, ms   ARGV[2]  the batch as 20 digits   ARGV[3]  this run as 20 digits   ARGV[4]  the task
-- ARGV[5]  how many rows to move at most: the server does nothing else meanwhile
--
-- Returns 1 if there are more, else 0; KEYS[3] is deleted then. An error if a later run has begun.

local batch, run, task, count = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
if redis.call('HGET', KEYS[1], 'run') ~= batch .. run then return redis.error_reply('STALERUN a later run has begun') end
local of = redis.call('HGET', KEYS[1], 't:' .. task)
if not of or of >= run then return 0 end
local from = tonumber(redis.call('HGET', KEYS[1], 'c:' .. task) or 0)
local hashes = ''
if redis.call('GETRANGE', KEYS[3], 0, 19) == batch then
  hashes = redis.call('GETRANGE', KEYS[3], 36 + 8 * from, 36 + 8 * (from + count) - 1)
end
for at = 1, #hashes, 8 do redis.call('HINCRBY', KEYS[2], string.sub(hashes, at, at + 7), 1) end
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
if #hashes == 8 * count then
  redis.call('HSET', KEYS[1], 'c:' .. task, from + count)
  return 1
end
redis.call('HDEL', KEYS[1], 't:' .. task, 'c:' .. task)
redis.call('HINCRBY', KEYS[1], 'old', -1)
redis.call('DEL', KEYS[3])
return 0
