-- Says which entries are not in the stream; what they contain stays at the server.
--
-- KEYS[1]  the stream
-- ARGV     entry ids
--
-- Returns those that are missing, in the same order.

local missing = {}
for _, id in ipairs(ARGV) do
  if #redis.call('XRANGE', KEYS[1], id, id) == 0 then missing[#missing + 1] = id end
end
return missing
