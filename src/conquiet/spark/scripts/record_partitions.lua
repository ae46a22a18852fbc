-- Records which partitions of a topic the attempts of one task add to, and how many partitions the topic had for
-- the first of them.
--
-- KEYS[1]  the record: the batch as 20 digits, how many partitions, ':,', then each recorded one and ','
-- ARGV[1]  window, ms: how long KEYS[1] is kept after the last change
-- ARGV[2]  the batch as 20 digits   ARGV[3]  how many partitions the topic has
-- ARGV[4…] the partitions to record; without any, nothing is changed
--
-- Returns the record without the batch. An error if a later batch has begun.

local batch, kept = ARGV[2], redis.call('GET', KEYS[1]) or ''
local begun = string.sub(kept, 1, 20)
if begun > batch then
  return redis.error_reply('STALEBATCH batch ' .. begun .. ' of the query has begun, this is ' .. batch)
end
if begun < batch then kept = batch .. ARGV[3] .. ':,' end
for i = 4, #ARGV do
  if not string.find(kept, ',' .. ARGV[i] .. ',', 21, true) then kept = kept .. ARGV[i] .. ',' end
end
if #ARGV > 3 then redis.call('SET', KEYS[1], kept, 'PX', ARGV[1]) end
return string.sub(kept, 21)
