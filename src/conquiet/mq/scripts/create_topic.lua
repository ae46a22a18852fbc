-- Creates a topic, or grows it, or leaves it as it is: registry, meta, partitions and their streams together. Every
-- partition has a stream, be it empty: one without was deleted, and nothing is written to it.
--
-- KEYS[1] the registry   KEYS[2] the meta   KEYS[3] the partitions   KEYS[4] the topic as it is being deleted
-- KEYS[5…] the streams to create; on a cluster none, as they are in other slots
-- ARGV[1] the topic   ARGV[2] now, ms, or ''   ARGV[3] the layout   ARGV[4] policies as JSON, '' to leave them
-- ARGV[5] 'create' or 'grow'   ARGV[6…] the streams of all partitions
--
-- Returns {partition count before, partition count now}; 'grow' of what is not there changes nothing. -1 instead of the
-- count now: its deletion has not ended.

local before = tonumber(redis.call('HGET', KEYS[2], 'partitionCount') or 0)
local wanted = #ARGV - 5
local is_new = before == 0
if is_new and ARGV[5] == 'grow' then return {0, 0} end
if redis.call('EXISTS', KEYS[4]) == 1 then return {before, -1} end
-- A topic never shrinks: the messages of a removed partition would have no reader.
if not is_new and (wanted < before or wanted > before and ARGV[5] == 'create') then return {before, before} end
if is_new then
  redis.call('HSET', KEYS[2], 'createdAt', now_ms(ARGV[2]), 'layout', ARGV[3], 'schemaVersion', 1)
end
if wanted > before then
  if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'policies', ARGV[4]) end
  redis.call('HSET', KEYS[2], 'partitionCount', wanted, 'updatedAt', now_ms(ARGV[2]))
  for i = 6, #ARGV do redis.call('SADD', KEYS[3], ARGV[i]) end
  redis.call('SADD', KEYS[1], ARGV[1])
end
for i = 5, #KEYS do create_stream(KEYS[i]) end
return {before, wanted}
