-- Moves a group forward to where somebody else has read, so that its lag tells how far behind that one is.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group   ARGV[2]  the last id that was read   ARGV[3]  entries ever read up to there, '' if unknown
--
-- Returns 1 if the group was moved or created, 0 if it was there or further already.

local function numbers(id)
  local ms, sequence = string.match(id, '(%d+)-(%d+)')
  -- As text of equal length: a double cannot hold 64 bits.
  return string.rep('0', 20 - #ms) .. ms, string.rep('0', 20 - #sequence) .. sequence
end

local is_there = false
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local group = {}
    for i = 1, #info, 2 do group[info[i]] = info[i + 1] end
    if group['name'] == ARGV[1] then
      is_there = true
      local ms, sequence = numbers(group['last-delivered-id'])
      local new_ms, new_sequence = numbers(ARGV[2])
      if new_ms < ms or (new_ms == ms and new_sequence <= sequence) then return 0 end
    end
  end
end
local command = is_there and {'XGROUP', 'SETID', KEYS[1], ARGV[1], ARGV[2]}
  or {'XGROUP', 'CREATE', KEYS[1], ARGV[1], ARGV[2], 'MKSTREAM'}
if ARGV[3] ~= '' then
  command[#command + 1] = 'ENTRIESREAD'
  command[#command + 1] = ARGV[3]
end
redis.call(unpack(command))
return 1
