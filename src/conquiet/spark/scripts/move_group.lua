-- Moves a group forward to where a streaming query has read, so that the group's lag is the query's.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group   ARGV[2]  the last id that was read   ARGV[3]  entries ever added up to it, '' if unknown
--
-- Returns 1 if the group was moved or created, 0 if it was there or further already.

local function numbers(id)
  local ms, sequence = string.match(id, '(%d+)-(%d+)')
  -- As text of equal length: a double has fewer than 64 bits.
  return string.rep('0', 20 - #ms) .. ms, string.rep('0', 20 - #sequence) .. sequence
end

local exists = false
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local group = {}
    for i = 1, #info, 2 do group[info[i]] = info[i + 1] end
    if group['name'] == ARGV[1] then
      exists = true
      local ms, sequence = numbers(group['last-delivered-id'])
      local new_ms, new_sequence = numbers(ARGV[2])
      if new_ms < ms or (new_ms == ms and new_sequence <= sequence) then return 0 end
    end
  end
end
local command = exists and {'XGROUP', 'SETID', KEYS[1], ARGV[1], ARGV[2]}
  or {'XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM'}
if ARGV[3] ~= '' then
  command[#command + 1] = 'ENTRIESREAD'
  command[#command + 1] = ARGV[3]
end
-- A full server refuses XGROUP as the first write of a script and allows it as a later one; no entry has this id. A user
-- that may not ack can do without.
redis.pcall('XACK', KEYS[1], ARGV[1], '0-0')
redis.call(unpack(command))
return 1
