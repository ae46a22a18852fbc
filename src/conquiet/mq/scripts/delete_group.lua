-- Deletes a group from one partition, with its lease, retries and failures, unless that would lose messages.
--
-- KEYS[1] the stream   KEYS[2] the lease   KEYS[3] the waiting set   KEYS[4] the failures
-- ARGV[1] the group   ARGV[2] '1' to delete it even if something is pending
--
-- Returns how many entries were pending; if any were and it was not forced, nothing is deleted.

local pending = redis.call('XPENDING', KEYS[1], ARGV[1])[1]
if pending > 0 and ARGV[2] ~= '1' then return pending end
redis.call('XGROUP', 'DESTROY', KEYS[1], ARGV[1])
-- The epoch stays: a worker that slept through this must not meet its own number again.
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
return pending
