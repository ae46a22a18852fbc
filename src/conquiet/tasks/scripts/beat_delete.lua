-- Deletes a schedule; what it has enqueued stays.
--
-- KEYS[1] the names   KEYS[2] the due set   KEYS[3] the schedule   KEYS[4] its history
-- ARGV[1] its name   ARGV[2] its version that the caller has seen, or '' for any
--
-- Returns {1, its version}, or {0, its version} if that is another one, or 0 if there is none.

local found = redis.call('HGET', KEYS[3], 'version')
local version = tonumber(whole(found)) or 0
if not found or (ARGV[2] ~= '' and version ~= tonumber(ARGV[2])) then return {0, version} end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[1], ARGV[1])
-- One by one: a user may have each right in a selector of its own.
redis.call('DEL', KEYS[3])
redis.call('DEL', KEYS[4])
return {1, version}
