-- Goes through a range of a stream in equal steps, and returns where each step ended.
--
-- KEYS[1]  the stream
-- ARGV[1]  the first id   ARGV[2]  the last id   ARGV[3]  steps at most   ARGV[4]  entries in a step
--
-- Returns {last id, number of entries} for each step; the last one may be shorter.

local steps, start = {}, ARGV[1]
for _ = 1, tonumber(ARGV[3]) do
  local entries = redis.call('XRANGE', KEYS[1], start, ARGV[2], 'COUNT', ARGV[4])
  if #entries == 0 then break end
  local last = entries[#entries][1]
  steps[#steps + 1] = {last, #entries}
  if #entries < tonumber(ARGV[4]) then break end
  start = '(' .. last
end
return steps
