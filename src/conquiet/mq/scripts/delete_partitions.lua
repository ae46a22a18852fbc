-- Deletes partitions with all their keys at once, leases and streams among them: no consumer can write any more, and
-- without the stream none acquires them again.
--
-- KEYS[1] the groups that ever owned one of them   KEYS[2…] the streams, then all other keys of these partitions and of
-- the groups given
-- ARGV[1] how many streams   ARGV[2…] the groups that the caller knows
--
-- Returns the groups that the caller does not know: if there are any, nothing is deleted.

local is_known, unknown, problem = {}, {}, nil
for i = 2, #ARGV do is_known[ARGV[i]] = true end

local function note(name)
  if not is_known[name] then unknown[#unknown + 1] = name end
  is_known[name] = true
end

-- A key that is missing, or of another type, has no groups and is deleted all the same.
local function read(...)
  local reply = redis.pcall(...)
  if not reply.err then return reply end
  if not (string.find(reply.err, 'WRONGTYPE', 1, true) or string.find(reply.err, 'no such key', 1, true)) then
    problem = reply
  end
  return {}
end

for _, name in ipairs(read('SMEMBERS', KEYS[1])) do note(name) end
for i = 2, 1 + ARGV[1] do
  for _, info in ipairs(read('XINFO', 'GROUPS', KEYS[i])) do note(info[2]) end
end
if problem then return problem end
if #unknown == 0 then
  for _, key in ipairs(KEYS) do redis.call('DEL', key) end
end
return unknown
