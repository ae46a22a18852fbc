-- Reads a few entries from each of several ids on, and returns no payloads.
--
-- KEYS[1]  the stream
-- ARGV[1]  entries to read from each id on   ARGV[2]  the last id   ARGV[3…]  the ids to start at
--
-- Returns {first id, last id, number of entries} for each start; the number is 0 if there are none. Where entries are
-- large, for the first starts only, one at least: the server does nothing else meanwhile.

-- XRANGE returns what is in the entries, too: one, then as many as fit into what is left of 64 KiB for a sample, but
-- 16 at most, since large ones may follow small ones. All samples of a call end with the one that makes it 4 MiB.
local total = 0
local function sample(start)
  local first, last, number, bytes = nil, '', 0, 0
  while number < tonumber(ARGV[1]) and bytes < 65536 do
    local count = 1
    if number > 0 then
      count = math.max(1, math.min(16, ARGV[1] - number, math.floor((65536 - bytes) * number / math.max(1, bytes))))
    end
    local entries = redis.call('XRANGE', KEYS[1], start, ARGV[2], 'COUNT', count)
    for _, entry in ipairs(entries) do
      first, last, number = first or entry[1], entry[1], number + 1
      for _, part in ipairs(entry[2]) do bytes = bytes + #part end
    end
    if #entries < count then break end
    start = '(' .. last
  end
  total = total + bytes
  return {first or '', last, number}
end

local samples = {}
for i = 3, #ARGV do
  samples[#samples + 1] = sample(ARGV[i])
  if total > 4194304 then break end
end
return samples
