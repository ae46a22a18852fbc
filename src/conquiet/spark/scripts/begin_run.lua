-- Begins a run of a named write, or of a batch of a query, in one stream; earlier runs can add nothing from now on.
--
-- KEYS[1]  the runs: the hash of `run`, the batch and the run as 20 digits each; of `t:TASK`, the run that the record of a
--          task is of; of `c:TASK`, how many rows of the record are in KEYS[2]; of `old`, how many records are of earlier
--          runs
-- KEYS[2]  rows of earlier runs: the hash of each row's hash, how many such rows are in the stream
-- ARGV[1]  window, ms: how long both are kept after the last call   ARGV[2]  the batch as 20 digits
-- ARGV[3]  the run as 20 digits
--
-- Returns the tasks whose records are of earlier runs, and have rows that are not in KEYS[2] yet. An error if a later run
-- or batch has begun.

local batch, run = ARGV[2], ARGV[3]
local known = redis.call('HGET', KEYS[1], 'run') or ''
if known > batch .. run then
  return redis.error_reply('STALERUN a later run or batch has begun, this is run ' .. run .. ' of batch ' .. batch)
end
local tasks = {}
if string.sub(known, 1, 20) ~= batch then
  redis.call('DEL', KEYS[1], KEYS[2])
elseif known ~= batch .. run or redis.call('HGET', KEYS[1], 'old') ~= '0' then
  -- Not for each of many tasks: there is nothing to look for once all is moved.
  local fields = redis.call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 't:' and fields[i + 1] < run then tasks[#tasks + 1] = string.sub(fields[i], 3) end
  end
end
if known ~= batch .. run then redis.call('HSET', KEYS[1], 'run', batch .. run, 'old', #tasks) end
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
return tasks
