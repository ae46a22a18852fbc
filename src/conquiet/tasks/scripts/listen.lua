-- Has the events of a queue written for some time.
--
-- KEYS[1] the queue's meta   KEYS[2] the feed of listeners   ARGV[1] now, ms, or ''   ARGV[2] for how long, ms
-- Returns the id of the feed's last entry: what comes behind it is new.

local until_ms = now_ms(ARGV[1]) + ARGV[2]
local known = tonumber(redis.call('HGET', KEYS[1], 'listened') or 0)
-- The first write needs no memory: a full server can be listened to, too.
redis.call('HDEL', KEYS[1], '')
if until_ms > known then redis.call('HSET', KEYS[1], 'listened', string.format('%.0f', until_ms)) end
local last = redis.call('XREVRANGE', KEYS[2], '+', '-', 'COUNT', 1)[1]
return last and last[1] or '0-0'
