-- Moves a group to another position in its stream; its pending list stays. A group that has not begun is created there.
--
-- KEYS[1] the stream
-- ARGV[1] the group   ARGV[2] the id after which it goes on, '$' for the stream's end   ARGV[3] '1' to change nothing
-- ARGV[4] count at most so many entries
--
-- Returns {last delivered id before, last delivered id after, entries given again, entries skipped}; -1 for more
-- than may be counted. False if there is no stream.

if redis.call('EXISTS', KEYS[1]) == 0 then return false end

local function as_table(flat)
  local named = {}
  for i = 1, #flat, 2 do named[flat[i]] = flat[i + 1] end
  return named
end

local before = nil
for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = as_table(info)
  if group['name'] == ARGV[1] then before = group['last-delivered-id'] end
end
local is_new = not before
before = before or '0-0'
local after = ARGV[2]
if after == '$' then after = as_table(redis.call('XINFO', 'STREAM', KEYS[1]))['last-generated-id'] end

local function count_between(low, high)
  -- An empty interval for XRANGE if high is not above low.
  local most = tonumber(ARGV[4])
  local ids, is_all = ids_between(KEYS[1], '(' .. low, high, most + 1)
  return is_all and #ids <= most and #ids or -1
end

local again, skipped = count_between(after, before), count_between(before, after)
if ARGV[3] ~= '1' then
  -- To skip what nobody needs, so that it can be trimmed, is for a full server above all.
  open_when_full('XDEL', KEYS[1], '0-0')
  redis.call('XGROUP', is_new and 'CREATE' or 'SETID', KEYS[1], ARGV[1], after)
end
return {before, after, again, skipped}
