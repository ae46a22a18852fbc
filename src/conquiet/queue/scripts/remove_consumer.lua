-- Deletes a consumer that has nothing pending: with pending entries Redis would drop them too.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group   ARGV[2]  the consumer
--
-- Returns 1 if nothing of it is left, 0 if it has something pending.

-- Redis before 7 needs this: XPENDING is not deterministic and XGROUP writes.
if redis.replicate_commands then redis.replicate_commands() end

if #redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2]) > 0 then return 0 end
-- No entry has this id. Before Redis 7 a full server refuses every XGROUP, unless the script has written before.
redis.call('XACK', KEYS[1], ARGV[1], '0-0')
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
