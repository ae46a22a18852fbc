-- Goes through a range of a stream in equal steps, and returns where each step ended.
--
-- KEYS[1]  the stream
-- ARGV[1]  the first id   ARGV[2]  the last id   ARGV[3]  steps at most   ARGV[4]  entries in a step
--
-- Returns {last id, number of entries} for each step; the last one may be shorter, also where entries are large.

-- XRANGE returns what is in the entries, too: one, then as many as fit by their average, but 16 at most, since large ones
-- may follow small ones; and no more after 4 MiB, since the server does nothing else meanwhile.
local steps, start, size, bytes, walked, is_end = {}, ARGV[1], tonumber(ARGV[4]), 0, 0, false
local function step()
  local last, number = nil, 0
  while number < size and bytes < 4194304 and not is_end do
    local fitting = walked == 0 and 1 or math.floor((4194304 - bytes) * walked / math.max(1, bytes))
    local count = math.max(1, math.min(16, fitting, size - number))
    local entries = redis.call('XRANGE', KEYS[1], start, ARGV[2], 'COUNT', count)
    for _, entry in ipairs(entries) do
      for _, part in ipairs(entry[2]) do bytes = bytes + #part end
    end
    is_end = #entries < count
    if #entries > 0 then
      last, number = entries[#entries][1], number + #entries
      walked = walked + #entries
      start = '(' .. last
    end
  end
  if number > 0 then steps[#steps + 1] = {last, number} end
end
while #steps < tonumber(ARGV[3]) and bytes < 4194304 and not is_end do step() end
return steps
