-- The workers that are alive.
--
-- KEYS[1] the workers   ARGV[1] now, ms, or ''
-- Returns their descriptions, each followed by for how many ms it still counts as alive.

local now, alive = now_ms(ARGV[1]), {}
-- Who may only read, may ask too.
redis.pcall('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
local reply = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now), '+inf', 'WITHSCORES')
for i = 1, #reply, 2 do
  alive[i] = reply[i]
  alive[i + 1] = tonumber(reply[i + 1]) - now
end
return alive
