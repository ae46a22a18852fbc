-- Adds numbered payloads, each unless the same number was added under the same dedupe id before.
--
-- KEYS[1]  the stream   KEYS[2]  a hash of what was added under this dedupe id: number to entry id
-- ARGV[1]  window, ms: how long the hash is kept after the last call
-- ARGV[2]  the number of the first payload   ARGV[3…]  payloads
--
-- Returns the entry ids, in order.

local first, ids = tonumber(ARGV[2]), {}
for i = 3, #ARGV do
  local number = string.format('%d', first + i - 3)
  local id = redis.call('HGET', KEYS[2], number)
  if not id then
    id = redis.call('XADD', KEYS[1], '*', 'data', ARGV[i])
    redis.call('HSET', KEYS[2], number, id)
  end
  ids[#ids + 1] = id
end
redis.call('PEXPIRE', KEYS[2], ARGV[1])
return ids
