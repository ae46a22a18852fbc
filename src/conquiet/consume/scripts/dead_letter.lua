-- Moves one pending entry to the dead letters, if it is still pending at the consumer with the same delivery count.
-- The copy is added before the entry is acked: whatever dies in between, the message is in one of the two.
--
-- KEYS[1]  the stream
-- KEYS[2]  the stream of dead letters
-- ARGV[1]  the group
-- ARGV[2]  the consumer
-- ARGV[3]  the entry id
-- ARGV[4]  its delivery count
-- ARGV[5]  the dead letter's `data`
--
-- Returns the id of the dead letter, or false if the entry is no longer pending at the consumer.

-- Redis before 7 needs this: XPENDING is not deterministic and XADD writes.
if redis.replicate_commands then redis.replicate_commands() end

local pending = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[3], ARGV[3], 1)[1]
if not pending or pending[2] ~= ARGV[2] or pending[4] ~= tonumber(ARGV[4]) then
  return false
end
-- No entry has this id. A full server refuses XADD as the first write of a script and allows it as a later one: a message
-- that cannot be handled must not keep the stream from being drained.
redis.call('XACK', KEYS[1], ARGV[1], '0-0')
local added = redis.call('XADD', KEYS[2], '*', 'data', ARGV[5])
redis.call('XACK', KEYS[1], ARGV[1], ARGV[3])
return added
