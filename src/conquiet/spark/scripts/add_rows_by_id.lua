-- Adds rows, each unless its dedupe id was added within the window.
--
-- KEYS[1]  the stream   KEYS[2]  the dedupe ids   KEYS[3]  until when each is known
-- ARGV[1]  window, ms   ARGV[2…]  dedupe id and row, in turns: a row as in add_rows_of_task.lua
--
-- Returns how many were added.

local time = redis.call('TIME')
local now, window, added = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[1]), 0
for i = 2, #ARGV, 2 do
  local id = ARGV[i]
  local known_until = redis.call('ZSCORE', KEYS[3], id)
  if not (known_until and tonumber(known_until) > now) then
    local row = ARGV[i + 1]
    local fields = string.byte(row) == 0xdd and cmsgpack.unpack(row) or {'data', row}
    local entry_id = redis.call('XADD', KEYS[1], '*', unpack(fields))
    redis.call('HSET', KEYS[2], id, entry_id)
    redis.call('ZADD', KEYS[3], now + window, id)
    added = added + 1
  end
end
-- More are forgotten than added, so that the set never grows beyond its window.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, 2 * (#ARGV - 1))) do
  redis.call('ZREM', KEYS[3], old)
  redis.call('HDEL', KEYS[2], old)
end
-- Never shorter than a producer with a longer window has asked for.
for i = 2, 3 do redis.call('PEXPIRE', KEYS[i], math.max(window, redis.call('PTTL', KEYS[i]))) end
return added
