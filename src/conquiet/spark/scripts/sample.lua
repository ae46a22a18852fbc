-- Looks at a few entries at each of several places of a stream, and returns no payloads.
--
-- KEYS[1]  the stream
-- ARGV[1]  entries to look at in each place   ARGV[2]  the last id   ARGV[3…]  the ids to start at
--
-- Returns {first id, last id, number of entries} for each place; the number is 0 if there are none.

local found = {}
for i = 3, #ARGV do
  local entries = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[2], 'COUNT', ARGV[1])
  if #entries == 0 then
    found[#found + 1] = {'', '', 0}
  else
    found[#found + 1] = {entries[1][1], entries[#entries][1], #entries}
  end
end
return found
