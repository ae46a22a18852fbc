-- Acks entries, then delivers new ones, no more after so many bytes; it does not wait.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group   ARGV[2]  the consumer
-- ARGV[3]  how many to deliver   ARGV[4]  no further ones after so many bytes   ARGV[5…]  entry ids to ack
--
-- Returns {how many were acked; of entries with the one field `data`: id, value, id, value, …; other entries}: flat, since a
-- table for each entry takes the server longer than to read it.

-- Redis before 7 needs this: XREADGROUP is not deterministic, and what follows writes.
if redis.replicate_commands then redis.replicate_commands() end

local stream, group, wanted, bytes_left = KEYS[1], ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
-- The length of `flat` is counted: Lua would search for it.
local acked, flat, flat_length, others, taken = 0, {}, 0, {}, 0
for first = 5, #ARGV, 500 do
  acked = acked + redis.call('XACK', stream, group, unpack(ARGV, first, math.min(first + 499, #ARGV)))
end
-- One, and then as many as its like would fit, up to ten at a time: only what was read tells how large it is.
local most = 1
while taken < wanted and bytes_left > 0 do
  local count = math.min(most, wanted - taken)
  local reply = redis.call('XREADGROUP', 'GROUP', group, ARGV[2], 'COUNT', count, 'STREAMS', stream, '>')
  local some = reply and reply[1][2] or {}
  local length = #some
  for i = 1, length do
    local entry = some[i]
    local fields = entry[2]
    if fields[1] == 'data' and not fields[3] then
      local value = fields[2]
      flat[flat_length + 1], flat[flat_length + 2] = entry[1], value
      flat_length = flat_length + 2
      bytes_left = bytes_left - #value
    else
      others[#others + 1] = entry
      for _, part in ipairs(fields) do bytes_left = bytes_left - #part end
    end
  end
  taken = taken + length
  if length < count then break end
  most = math.max(1, math.min(10, math.floor(bytes_left * taken / math.max(1, ARGV[4] - bytes_left))))
end
return {acked, flat, others}
