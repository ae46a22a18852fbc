-- Changes the policies of a topic.
--
-- KEYS[1] the meta
-- ARGV[1] now, ms, or ''   ARGV[2] policies as JSON
--
-- Returns 1, or 0 if there is no such topic.

if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
-- A retention is what a full server needs.
open_when_full('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'policies', ARGV[2], 'updatedAt', now_ms(ARGV[1]))
return 1
