-- Removes the oldest entries of a stream that every group has finished: below each group's last delivered entry, and
-- below its oldest pending one. A stream that lacks one of the topic's groups is left alone: that group will begin at
-- the stream's beginning.
--
-- KEYS[1] the stream
-- ARGV[1] keep at least so many entries, '' for any   ARGV[2] keep what is not older, ms, '' for any
-- ARGV[3] now, ms, or ''   ARGV[4] remove at most so many   ARGV[5] '1' to only count
-- ARGV[6] '1' to remove also if the topic has no group at all   ARGV[7…] the groups of the topic
--
-- Returns {the stream, removed, 1 if there may be more to remove, groups that the stream lacks}.

-- By text: a number of Lua has 53 of an id's 64 bits.
local function is_less(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end

local function is_before(a, b)
  local a_ms, a_sequence = string.match(a, '^(%d+)-(%d+)$')
  local b_ms, b_sequence = string.match(b, '^(%d+)-(%d+)$')
  if a_ms ~= b_ms then return is_less(a_ms, b_ms) end
  return is_less(a_sequence, b_sequence)
end

if redis.call('XLEN', KEYS[1]) == 0 then return {KEYS[1], 0, 0, {}} end
local low, is_here = nil, {}
for _, info in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local group = {}
  for i = 1, #info, 2 do group[info[i]] = info[i + 1] end
  is_here[group['name']] = true
  local oldest = redis.call('XPENDING', KEYS[1], group['name'])[2]
  -- The last delivered entry itself is finished if nothing is pending; it is kept, which costs one entry.
  local mark = group['last-delivered-id']
  -- Either may be the smaller one: a group that was reset has pending entries behind its last delivered one.
  if oldest and is_before(oldest, mark) then mark = oldest end
  if not low or is_before(mark, low) then low = mark end
end
local missing = {}
for i = 7, #ARGV do
  if not is_here[ARGV[i]] then missing[#missing + 1] = ARGV[i] end
end
-- Without a group nothing is unfinished: behind every entry.
if not low and #ARGV == 6 and ARGV[6] == '1' then low = '18446744073709551615-18446744073709551615' end
if not low or #missing > 0 then return {KEYS[1], 0, 0, missing} end
if ARGV[2] ~= '' then
  local oldest_kept = string.format('%.0f-0', math.max(0, now_ms(ARGV[3]) - tonumber(ARGV[2])))
  if is_before(oldest_kept, low) then low = oldest_kept end
end
-- Nothing is before it, and XRANGE refuses such an interval.
if low == '0-0' then return {KEYS[1], 0, 0, missing} end

local limit = tonumber(ARGV[4])
if ARGV[1] ~= '' then limit = math.min(limit, redis.call('XLEN', KEYS[1]) - tonumber(ARGV[1])) end
if limit <= 0 then return {KEYS[1], 0, 0, missing} end
local ids, is_all = ids_between(KEYS[1], '-', '(' .. low, limit + 1)
-- The last one that was read is kept, unless there are no others before the mark.
local has_more = #ids > limit or not is_all
local removed = has_more and #ids - 1 or #ids
if ARGV[5] ~= '1' then
  removed = redis.call('XTRIM', KEYS[1], 'MINID', '=', has_more and ids[#ids] or low)
end
return {KEYS[1], removed, has_more and 1 or 0, missing}
