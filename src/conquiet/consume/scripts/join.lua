-- Says that a drain lives under its consumer's name, unless another one does, and tells which names are dead.
--
-- KEYS[1]  the drains of the group: consumer to 'expires at, ms; instance; process', separated by spaces
-- KEYS[2]  the stream
-- ARGV[1]  the group   ARGV[2]  the consumer   ARGV[3]  the instance   ARGV[4]  its process
-- ARGV[5]  time to live, ms   ARGV[6]  an instance that is known to be dead, or ''
--
-- Returns {1, the consumers whose heartbeat ended}, or {0, the instance that lives under the name, its process, for how
-- long it counts as alive, ms}. Names of drains that have ended are deleted as soon as nothing is pending there.

-- Redis before 7 needs this: TIME and XPENDING are not deterministic, and what follows writes.
if redis.replicate_commands then redis.replicate_commands() end

local group, consumer, instance = ARGV[1], ARGV[2], ARGV[3]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function read(record)
  local expires, name, process = string.match(record or '', '^(%d+) (%S+) (%S+)')
  return tonumber(expires or 0), name, process
end

local expires, other, process = read(redis.call('HGET', KEYS[1], consumer))
if expires > now and other ~= instance and other ~= ARGV[6] then return {0, other, process, expires - now} end
-- A server that is out of memory allows HSET only after another write of the same script.
redis.call('PERSIST', KEYS[1])
redis.call('HSET', KEYS[1], consumer, string.format('%d %s %s', now + ARGV[5], instance, ARGV[4]))

local dead, records = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #records, 2 do
  local name = records[i]
  local ends, of = read(records[i + 1])
  if name ~= consumer and of == 'ended' then
    local pending = redis.pcall('XPENDING', KEYS[2], group, '-', '+', 1, name)
    if pending.err then
      -- Somebody deleted the group: its names are gone.
      redis.call('HDEL', KEYS[1], name)
    elseif #pending == 0 then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[2], group, name)
      redis.call('HDEL', KEYS[1], name)
    end
  elseif name ~= consumer and ends <= now then
    dead[#dead + 1] = name
  end
end
return {1, dead}
