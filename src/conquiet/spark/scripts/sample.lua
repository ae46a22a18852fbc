-- Reads a few entries from each of several ids on, and returns no payloads.
--
-- KEYS[1]  the stream
-- ARGV[1]  entries to read from each id on   ARGV[2]  the last id   ARGV[3…]  the ids to start at
--
-- Returns {first id, last id, number of entries} for each start; the number is 0 if there are none.

-- XRANGE returns what is in the entries, too: a few at a time, and no more of a sample after 1 MiB.
local function sample(start)
  local first, last, number, bytes = nil, '', 0, 0
  while number < tonumber(ARGV[1]) and bytes < 1048576 do
    local count = math.min(10, ARGV[1] - number)
    local entries = redis.call('XRANGE', KEYS[1], start, ARGV[2], 'COUNT', count)
    for _, entry in ipairs(entries) do
      first, last, number = first or entry[1], entry[1], number + 1
      for _, part in ipairs(entry[2]) do bytes = bytes + #part end
    end
    if #entries < count then break end
    start = '(' .. last
  end
  return {first or '', last, number}
end

local samples = {}
for i = 3, #ARGV do samples[#samples + 1] = sample(ARGV[i]) end
return samples
