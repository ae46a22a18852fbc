-- Adds named payloads, each unless the same name was added under the same dedupe id before.
--
-- KEYS[1]  the stream   KEYS[2]  a hash of what was added under this dedupe id: name to entry id
-- ARGV[1]  window, ms: how long the hash is kept after the last call   ARGV[2…]  name and payload, in turn
--
-- Returns for each the entry id, and 1 if it was added now, 0 if not.

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
