-- Keeps an item to be added to its partition later.
--
-- KEYS[1] the delayed set   KEYS[2] the delayed items
-- KEYS[3] of a topic, the stream: without it the partition was deleted, and nothing is kept
-- ARGV[1] now, ms, or ''   ARGV[2] delay, ms   ARGV[3] the item's name   ARGV[4] partition, a colon, data
--
-- Returns the time at which it is due, ms, or false if the partition was deleted.

if KEYS[3] and redis.call('EXISTS', KEYS[3]) == 0 then return false end
local due = now_ms(ARGV[1]) + ARGV[2]
redis.call('HSET', KEYS[2], ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[1], due, ARGV[3])
return due
