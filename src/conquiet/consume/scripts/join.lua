-- Says that a drain lives under its consumer's name, unless another one does, and returns which names are dead.
--
-- KEYS[1]  the drains of the group: consumer to 'expires at, ms; instance; process; time to live, ms', separated by spaces
-- KEYS[2]  the stream
-- ARGV[1]  the group   ARGV[2]  the consumer   ARGV[3]  the instance   ARGV[4]  its process
-- ARGV[5]  time to live, ms   ARGV[6]  an instance that is known to be dead, or ''
--
-- Returns {1, the consumers whose heartbeat ended}, or {0, the instance that lives under the name, its process, for how
-- long it counts as alive, ms}. Names of drains that have ended or died are deleted as soon as nothing is pending there.

-- Redis before 7 needs this: TIME and XPENDING are not deterministic, and what follows writes.
if redis.replicate_commands then redis.replicate_commands() end

local group, consumer, instance = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

-- A server that is out of memory allows HSET only after another write of the same script.
redis.call('PERSIST', KEYS[1])

local function read(name, record)
  local expires, of, process, ttl = string.match(record or '', '^(%d+) (%S+) (%S+) ?(%d*)')
  expires, ttl = tonumber(expires or 0), tonumber(ttl)
  if ttl and expires > now + ttl then
    -- The clock was set back, as by a failover: else who died before that would count as alive until it has caught up.
    expires = now + ttl
    redis.call('HSET', KEYS[1], name, string.format('%d %s %s %d', expires, of, process, ttl))
  end
  return expires, of, process
end

local expires, other, process = read(consumer, redis.call('HGET', KEYS[1], consumer))
if expires > now and other ~= instance and other ~= ARGV[6] then return {0, other, process, expires - now} end
redis.call('HSET', KEYS[1], consumer, string.format('%d %s %s %d', now + ARGV[5], instance, ARGV[4], ARGV[5]))

local dead, records = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #records, 2 do
  local name = records[i]
  local ends, of = read(name, records[i + 1])
  if name ~= consumer and ends <= now then
    local pending = redis.pcall('XPENDING', KEYS[2], group, '-', '+', 1, name)
    if pending.err then
      -- The group was deleted: its names are gone.
      redis.call('HDEL', KEYS[1], name)
    elseif #pending == 0 then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[2], group, name)
      redis.call('HDEL', KEYS[1], name)
    elseif of ~= 'ended' then
      dead[#dead + 1] = name
    end
  end
end
return {1, dead}
