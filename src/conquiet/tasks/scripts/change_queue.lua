-- Writes into the meta of a queue what control changes, and that something has changed.
--
-- KEYS[1] the queue's meta   ARGV[1] the field   ARGV[2] its value, '' to delete it
-- Returns the value before, or nil.

local before = redis.call('HGET', KEYS[1], ARGV[1])
-- The first write needs no memory: control is for a full server, too.
redis.call('HDEL', KEYS[1], ARGV[1])
if ARGV[2] ~= '' then redis.call('HSET', KEYS[1], ARGV[1], ARGV[2]) end
redis.call('HINCRBY', KEYS[1], 'changes', 1)
return before
