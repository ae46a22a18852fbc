-- Reads a few entries from each of several ids on, and returns no payloads.
--
-- KEYS[1]  the stream
-- ARGV[1]  entries to read from each id on   ARGV[2]  the last id   ARGV[3…]  the ids to start at
--
-- Returns {first id, last id, number of entries} for each start; the number is 0 if there are none.

local samples = {}
for i = 3, #ARGV do
  local entries = redis.call('XRANGE', KEYS[1], ARGV[i], ARGV[2], 'COUNT', ARGV[1])
  if #entries == 0 then
    samples[#samples + 1] = {'', '', 0}
  else
    samples[#samples + 1] = {entries[1][1], entries[#entries][1], #entries}
  end
end
return samples
