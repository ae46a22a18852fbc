-- Adds rows of an outbox to their stream, each unless an earlier call has added it: its transaction may have ended without
-- a commit, as when the relay died or too few replicas had confirmed.
--
-- KEYS[1]  the stream   KEYS[2]  what was added of this outbox and is not known to be removed from it: row to entry id
-- ARGV[1]  how long KEYS[2] is kept after the last call, ms   ARGV[2…]  the name of a row and its data, in turn
--
-- Returns for each row its entry id, and 1 if it was added now, 0 if not.

local replies = {}
for i = 2, #ARGV, 2 do
  local known = redis.call('HGET', KEYS[2], ARGV[i])
  local id = known or redis.call('XADD', KEYS[1], '*', 'data', ARGV[i + 1])
  if not known then redis.call('HSET', KEYS[2], ARGV[i], id) end
  replies[#replies + 1] = id
  replies[#replies + 1] = known and 0 or 1
end
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return replies
