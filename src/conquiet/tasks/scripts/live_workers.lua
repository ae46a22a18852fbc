-- The workers that are alive.
--
-- KEYS[1] the workers   ARGV[1] now, ms, or ''   ARGV[2] '1' to forget those that have ended, which is a write
-- Returns their descriptions, each followed by for how many ms it still counts as alive.

local now, alive = now_ms(ARGV[1]), {}
if ARGV[2] == '1' then redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) end
local reply = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
for i = 1, #reply, 2 do
  local left = tonumber(reply[i + 1]) - now
  if left > 0 then
    alive[#alive + 1] = reply[i]
    alive[#alive + 1] = left
  end
end
return alive
