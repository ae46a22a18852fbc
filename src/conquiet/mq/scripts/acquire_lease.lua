-- Acquires a lease that is free, expired, or the caller's own. Each acquisition begins a new epoch: what is
-- still on its way from an earlier epoch, as a late release, is refused.
--
-- KEYS[1] the lease   KEYS[2] the epoch counter   KEYS[3] the groups that ever owned the partition
-- KEYS[4] of a topic, the stream: without it the partition was deleted, and nothing is written
-- ARGV[1] the owner   ARGV[2] time to live, ms   ARGV[3] now, ms, or ''   ARGV[4] the group
-- ARGV[5] the instance: another one with the same owner's name is another consumer
-- ARGV[6…] owners that are known to be dead: their leases count as free
--
-- Returns {the lease, the instance, the epoch, or false if another consumer has the lease, or 'no stream'}.

local owner, now, instance = ARGV[1], now_ms(ARGV[3]), ARGV[5]
if KEYS[4] and redis.call('EXISTS', KEYS[4]) == 0 then return {KEYS[1], instance, 'no stream'} end
open_when_full('HDEL', KEYS[1], '')
local found = redis.call('HMGET', KEYS[1], 'owner', 'instance', 'expiresAtMs', 'ttlMs')
local expires, ttl = whole(found[3]) or 0, whole(found[4])
if ttl and expires > now + ttl then
  -- The clock was set back, as by a failover: else the lease of a dead owner would last until it has caught up.
  expires = now + ttl
  redis.call('HSET', KEYS[1], 'expiresAtMs', expires)
  redis.call('PEXPIRE', KEYS[1], ttl * 2)
end
local is_taken = found[1] and expires > now and not (found[1] == owner and found[2] == instance)
for i = 6, #ARGV do is_taken = is_taken and found[1] ~= ARGV[i] end
if is_taken then return {KEYS[1], instance, false} end
-- Before the counter, which has no end of its own: the deletion of the topic finds it by this.
redis.call('SADD', KEYS[3], ARGV[4])
local epoch = redis.call('INCR', KEYS[2])
redis.call('HSET', KEYS[1], 'owner', owner, 'instance', instance, 'epoch', epoch, 'acquiredAtMs', now,
  'expiresAtMs', now + ARGV[2], 'ttlMs', ARGV[2], 'turn', 0)
-- Only to clean up: expiresAtMs says whether it is valid.
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return {KEYS[1], instance, epoch}
