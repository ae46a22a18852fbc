-- Reads a range of a stream, no further entries after so many bytes; delivers and changes nothing.
--
-- KEYS[1]  the stream
-- ARGV[1]  where to begin   ARGV[2]  where to end   ARGV[3]  how many   ARGV[4]  no further ones after so many bytes
-- ARGV[5]  XRANGE, or XREVRANGE for the newest first   ARGV[6]  '1' for their ids alone
--
-- Returns {the entries or ids, their bytes, 1 if there are no more in the range}.

local command, start, wanted, most_bytes = ARGV[5], ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
-- The length of `found` is counted: Lua would search for it.
local found, number, bytes = {}, 0, 0
-- One, and then as many as its like would fit, up to ten at a time: only what was read tells how large it is.
local step = 1
while number < wanted and bytes < most_bytes do
  local count = math.min(step, wanted - number)
  local some = redis.call(command, KEYS[1], start, ARGV[2], 'COUNT', count)
  for _, entry in ipairs(some) do
    if bytes >= most_bytes then return {found, bytes, 0} end
    number = number + 1
    found[number] = ARGV[6] == '1' and entry[1] or entry
    for _, part in ipairs(entry[2]) do bytes = bytes + #part end
  end
  if #some < count then return {found, bytes, 1} end
  start = '(' .. some[#some][1]
  step = math.max(1, math.min(10, math.floor((most_bytes - bytes) * number / math.max(1, bytes))))
end
return {found, bytes, 0}
