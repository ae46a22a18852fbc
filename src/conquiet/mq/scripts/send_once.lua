-- Adds entries to one stream in order, each unless its dedupe id was added within its window.
--
-- KEYS[1] the stream   KEYS[2] the dedupe ids   KEYS[3] until when each is known
-- KEYS[4] of a topic, the stream once more: without it the partition was deleted, and nothing is added
-- ARGV[1] window, ms   ARGV[2] now, ms, or ''   ARGV[3…] dedupe id, or '' for an entry without one, and data, in turn
--
-- Returns for each entry its id, or that of the first one, and 1 if it was added now, 0 if not; nothing at all if the
-- partition was deleted.

if KEYS[4] and redis.call('EXISTS', KEYS[4]) == 0 then return {} end
local window, now = tonumber(ARGV[1]), now_ms(ARGV[2])
-- Both keys are touched before anything is added: an entry whose id could not be kept would be added again.
redis.call('HLEN', KEYS[2])
redis.call('ZSCORE', KEYS[3], '')

local function known(id)
  local known_until = redis.call('ZSCORE', KEYS[3], id)
  return known_until and tonumber(known_until) > now and redis.call('HGET', KEYS[2], id)
end

local replies, is_kept = {}, false
for i = 3, #ARGV, 2 do
  local id = ARGV[i]
  local first = id ~= '' and known(id)
  local entry_id = first or redis.call('XADD', KEYS[1], '*', 'data', ARGV[i + 1])
  if id ~= '' and not first then
    redis.call('HSET', KEYS[2], id, entry_id)
    redis.call('ZADD', KEYS[3], now + window, id)
    is_kept = true
  end
  replies[#replies + 1] = entry_id
  replies[#replies + 1] = first and 0 or 1
end
-- Twice as many are forgotten as are added, so that the set never grows beyond its window. Not before: on a full server
-- the first write is to be that of an entry, which is refused.
for _, old in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, math.max(10, #ARGV - 2))) do
  redis.call('ZREM', KEYS[3], old)
  redis.call('HDEL', KEYS[2], old)
end
if is_kept then
  -- Never shorter than a producer with a longer window has asked for.
  for i = 2, 3 do redis.call('PEXPIRE', KEYS[i], math.max(window, redis.call('PTTL', KEYS[i]))) end
end
return replies
