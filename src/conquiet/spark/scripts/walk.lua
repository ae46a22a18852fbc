-- Goes through a range of a stream in equal steps, and returns where each step ended.
--
-- KEYS[1]  the stream
-- ARGV[1]  the first id   ARGV[2]  the last id   ARGV[3]  steps at most   ARGV[4]  entries in a step
--
-- Returns {last id, number of entries} for each step; the last one may be shorter, also where entries are large.

-- XRANGE returns what is in the entries, too: a few at a time, and no more after 8 MiB, since the server does nothing
-- else meanwhile.
local steps, start, size, bytes, is_end = {}, ARGV[1], tonumber(ARGV[4]), 0, false
local function step()
  local last, number = nil, 0
  while number < size and bytes < 8388608 and not is_end do
    local count = math.min(10, size - number)
    local entries = redis.call('XRANGE', KEYS[1], start, ARGV[2], 'COUNT', count)
    for _, entry in ipairs(entries) do
      for _, part in ipairs(entry[2]) do bytes = bytes + #part end
    end
    is_end = #entries < count
    if #entries > 0 then
      last, number = entries[#entries][1], number + #entries
      start = '(' .. last
    end
  end
  if number > 0 then steps[#steps + 1] = {last, number} end
end
while #steps < tonumber(ARGV[3]) and bytes < 8388608 and not is_end do step() end
return steps
