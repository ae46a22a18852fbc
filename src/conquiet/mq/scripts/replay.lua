-- Moves one dead letter back to a partition; a second call finds nothing to move.
--
-- KEYS[1] the dead letters   KEYS[2] the stream of the partition
-- ARGV[1] the dead letter's id   ARGV[2] the new entry's data
--
-- Returns the new entry's id, or false if the dead letter is gone.

if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then return false end
local id = redis.call('XADD', KEYS[2], '*', 'data', ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[1])
return id
