-- Says that a drain has ended, forgets its consumer's name unless something is pending there, and returns what is pending at
-- other consumers.
--
-- KEYS[1]  the drains of the group, as in join.lua   KEYS[2]  the stream
-- ARGV[1]  the group   ARGV[2]  the consumer
-- ARGV[3]  the instance; '' for a consumer that is known to be dead, 'expired' for one that is dead by its heartbeat
-- ARGV[4]  how many entries the instance knows to be pending under its name
--
-- Returns {entries pending at other consumers, for how long the one that was delivered first among them has been idle, ms}.

-- Redis before 7 needs this: TIME and XPENDING are not deterministic, and what follows writes.
if redis.replicate_commands then redis.replicate_commands() end

local group, consumer, instance = ARGV[1], ARGV[2], ARGV[3]
local pending = redis.pcall('XPENDING', KEYS[2], group)
-- The group or the stream was deleted: nothing is pending anywhere.
if pending.err then
  redis.call('HDEL', KEYS[1], consumer)
  return {0, 0}
end
local elsewhere, longest, own = 0, 0, 0
for _, row in ipairs(pending[4] or {}) do
  if row[1] == consumer then
    own = tonumber(row[2])
  else
    elsewhere = elsewhere + tonumber(row[2])
    local first = redis.call('XPENDING', KEYS[2], group, '-', '+', 1, row[1])[1]
    -- What was handed back counts as idle since 1970.
    if first and first[3] < 315360000000 then longest = math.max(longest, first[3]) end
  end
end
-- A server that is out of memory allows XGROUP and HSET only after another write of the same script.
redis.call('PERSIST', KEYS[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local expires, holder = string.match(redis.call('HGET', KEYS[1], consumer) or '', '^(%d+) (%S+)')
-- Another drain may have begun under the name meanwhile.
local is_expired = instance == 'expired' and tonumber(expires or 0) <= now
if instance == '' or is_expired or holder == instance then
  if own == 0 then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[2], group, consumer)
    redis.call('HDEL', KEYS[1], consumer)
  elseif holder == instance then
    -- With others that it knows nothing of, as after a read whose reply was lost, it counts as dead.
    redis.call('HSET', KEYS[1], consumer, own <= tonumber(ARGV[4]) and '0 ended -' or ('0 ' .. instance .. ' -'))
  end
end
return {elsewhere, longest}
