-- Moves one dead letter back to a partition; a second call finds nothing to move.
--
-- KEYS[1] the dead letters   KEYS[2] the stream of the partition   KEYS[3] what each caller replayed last
-- ARGV[1] the dead letter's id   ARGV[2] the new entry's data   ARGV[3] the caller, which makes one call after the other
-- ARGV[4] the only group that the entry is for, '' for all   ARGV[5] '1' to change nothing
--
-- Returns {'replayed', the new entry's id}, {'no letter'}, or {'no group'}: every other group would skip the entry.

local last = redis.call('HGET', KEYS[3], ARGV[3]) or ''
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then
  -- A client that lost a reply sends its call again by itself; then it was this very call that moved the letter.
  local letter, entry = string.match(last, '^(%S+) (%S+)$')
  return letter == ARGV[1] and {'replayed', entry} or {'no letter'}
end
if ARGV[4] ~= '' then
  local pending = redis.pcall('XPENDING', KEYS[2], ARGV[4])
  if pending.err then return string.find(pending.err, 'NOGROUP', 1, true) and {'no group'} or pending end
end
if ARGV[5] == '1' then return {'replayed', ''} end
local id = redis.call('XADD', KEYS[2], '*', 'data', ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[3], ARGV[1] .. ' ' .. id)
-- Longer than any client goes on repeating a call.
redis.call('PEXPIRE', KEYS[3], 600000)
return {'replayed', id}
