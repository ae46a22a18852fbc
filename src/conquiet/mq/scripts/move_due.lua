-- Adds delayed items that are due to their partitions, all or nothing for each.
--
-- KEYS[1] the delayed set   KEYS[2] the delayed items   KEYS[3…] the streams of the partitions
-- ARGV[1] now, ms, or ''   ARGV[2] how many   ARGV[3…] the numbers of the partitions, as KEYS[3…]
--
-- An item is its partition, a colon, and the entry's data. Returns {the delayed set, how many were added, the
-- names of items that could not be: they have no data, or a partition that is not given}.

local now = now_ms(ARGV[1])
-- Each entry takes as much as its item frees, and was accepted before the server was full. Copies to be retried are among
-- them: without them their group would never be finished.
open_when_full('ZREM', KEYS[1], '')
local stream_of = {}
for i = 3, #KEYS do stream_of[ARGV[i]] = KEYS[i] end
local moved, stuck = 0, {}
for _, item in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, ARGV[2])) do
  local text = redis.call('HGET', KEYS[2], item)
  local partition, data = string.match(text or '', '^(%d+):(.*)$')
  if partition and stream_of[partition] then
    redis.call('XADD', stream_of[partition], '*', 'data', data)
    redis.call('ZREM', KEYS[1], item)
    redis.call('HDEL', KEYS[2], item)
    moved = moved + 1
  else
    stuck[#stuck + 1] = item
    -- Due again in a minute: until then it does not delay others, however many there are of its kind.
    redis.call('ZADD', KEYS[1], now + 60000, item)
  end
end
return {KEYS[1], moved, stuck}
