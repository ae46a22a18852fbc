-- Takes pending entries of one consumer, and of no other: what another has claimed since is left alone.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group
-- ARGV[2]  the consumer that takes   ARGV[3]  the consumer that is taken from
-- ARGV[4]  where to begin, as XPENDING wants it   ARGV[5]  the most to take
--
-- Returns {the last id of the page, or ''; {id, fields, delivery count} of what the stream still has}.

-- Redis before 7 needs this: XPENDING is not deterministic and XCLAIM writes.
if redis.replicate_commands then redis.replicate_commands() end

local stream, group, to, from = KEYS[1], ARGV[1], ARGV[2], ARGV[3]
local last, taken = '', {}
for _, row in ipairs(redis.call('XPENDING', stream, group, ARGV[4], '+', ARGV[5], from)) do
  last = row[1]
  local entry = redis.call('XCLAIM', stream, group, to, 0, last)[1]
  if entry then taken[#taken + 1] = {entry[1], entry[2], row[4] + 1} end
end
return {last, taken}
