-- Adds delayed items whose time has come to their partitions, all or nothing for each.
--
-- KEYS[1] the delayed set   KEYS[2] the delayed items   KEYS[3…] the streams of the partitions
-- ARGV[1] now, ms, or ''   ARGV[2] how many   ARGV[3…] the numbers of the partitions, as KEYS[3…]
--
-- An item is its partition, a colon, and the entry's data. Returns how many were added.

local now = now_ms(ARGV[1])
local stream_of = {}
for i = 3, #KEYS do stream_of[ARGV[i]] = KEYS[i] end
local moved = 0
for _, item in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])) do
  local text = redis.call('HGET', KEYS[2], item)
  local partition, data = string.match(text or '', '^(%d+):(.*)$')
  -- An item of a partition that is not given stays for a caller who knows it.
  if partition and stream_of[partition] then
    redis.call('XADD', stream_of[partition], '*', 'data', data)
    redis.call('ZREM', KEYS[1], item)
    redis.call('HDEL', KEYS[2], item)
    moved = moved + 1
  end
end
return moved
