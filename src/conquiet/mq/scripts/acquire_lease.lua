-- Acquires a lease that is free, expired, or held by the caller itself. Each acquisition begins a new epoch: what is
-- still on its way from an earlier holding, as a late release, is not of this one.
--
-- KEYS[1] the lease   KEYS[2] the epoch counter   KEYS[3] the groups that ever owned the partition
-- KEYS[4] of a topic, the stream: without it the partition was deleted, and nothing is written
-- ARGV[1] the owner   ARGV[2] time to live, ms   ARGV[3] now, ms, or ''   ARGV[4] the group
-- ARGV[5] the instance: another one with the same owner's name is somebody else
-- ARGV[6…] owners that are known to be dead: what they hold counts as free
--
-- Returns {the lease, the instance, the epoch, or false if somebody else holds the lease, or 'no stream'}.

local owner, now, instance = ARGV[1], now_ms(ARGV[3]), ARGV[5]
if KEYS[4] and redis.call('EXISTS', KEYS[4]) == 0 then return {KEYS[1], instance, 'no stream'} end
local held = redis.call('HMGET', KEYS[1], 'owner', 'instance', 'expiresAtMs')
local is_held = held[1] and (tonumber(held[3]) or 0) > now and not (held[1] == owner and held[2] == instance)
for i = 6, #ARGV do is_held = is_held and held[1] ~= ARGV[i] end
if is_held then return {KEYS[1], instance, false} end
open_when_full('HDEL', KEYS[1], '')
-- Before the counter, which has no end of its own: the deletion of the topic finds it by this.
redis.call('SADD', KEYS[3], ARGV[4])
local epoch = redis.call('INCR', KEYS[2])
redis.call('HSET', KEYS[1], 'owner', owner, 'instance', instance, 'epoch', epoch, 'acquiredAtMs', now,
  'expiresAtMs', now + ARGV[2], 'turn', 0)
-- Only to clean up: whether it is held is said by expiresAtMs.
redis.call('PEXPIRE', KEYS[1], ARGV[2] * 2)
return {KEYS[1], instance, epoch}
