-- Deletes the consumers of a group that have nothing pending and are not alive. One that is deleted by mistake comes
-- back with its next read, and what is pending cannot be lost.
--
-- KEYS[1] the stream   KEYS[2] the lease
-- ARGV[1] the group   ARGV[2] '1' to change nothing   ARGV[3…] the live members
--
-- Returns their names.

local is_alive = {}
for i = 3, #ARGV do is_alive[ARGV[i]] = true end
local owner = redis.call('HGET', KEYS[2], 'owner')
if owner then is_alive[owner] = true end
local pruned = {}
for _, info in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local consumer = {}
  for i = 1, #info, 2 do consumer[info[i]] = info[i + 1] end
  if consumer['pending'] == 0 and not is_alive[consumer['name']] then
    pruned[#pruned + 1] = consumer['name']
    if ARGV[2] ~= '1' then
      -- Before Redis 7 every XGROUP counts as one that may need memory.
      open_when_full('XDEL', KEYS[1], '0-0')
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], consumer['name'])
    end
  end
end
return pruned
