-- Forgets delayed items: they will not be added.
--
-- KEYS[1] the delayed set   KEYS[2] the delayed items
-- ARGV[…] the names of the items
--
-- Returns how many there were.

local forgotten = 0
for _, item in ipairs(ARGV) do
  forgotten = forgotten + redis.call('ZREM', KEYS[1], item)
  redis.call('HDEL', KEYS[2], item)
end
return forgotten
