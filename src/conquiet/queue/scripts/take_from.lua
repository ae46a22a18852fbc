-- Takes pending entries of one consumer, and of no other: what another has claimed since is left alone.
--
-- KEYS[1]  the stream   KEYS[2]  optional: the drains of the group, by consumer; of one that is alive nothing is taken
-- ARGV[1]  the group
-- ARGV[2]  the consumer that takes   ARGV[3]  the consumer that is taken from
-- ARGV[4]  where to begin, as XPENDING wants it   ARGV[5]  the most to take   ARGV[6]  no further one after so many bytes
--
-- Returns {the last id of the page, or ''; {id, fields, delivery count} of what the stream still has}.

-- Redis before 7 needs this: XPENDING is not deterministic and XCLAIM writes.
if redis.replicate_commands then redis.replicate_commands() end

local stream, group, to, from = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local last, taken = '', {}
if KEYS[2] then
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  local expires = string.match(redis.call('HGET', KEYS[2], from) or '', '^%d+')
  if tonumber(expires or 0) > now then return {last, taken} end
end
local bytes = 0
for _, row in ipairs(redis.call('XPENDING', stream, group, ARGV[4], '+', ARGV[5], from)) do
  if bytes >= tonumber(ARGV[6]) then break end
  last = row[1]
  local entry = redis.call('XCLAIM', stream, group, to, 0, last)[1]
  if entry then
    taken[#taken + 1] = {entry[1], entry[2], row[4] + 1}
    for _, part in ipairs(entry[2]) do bytes = bytes + #part end
  end
end
return {last, taken}
