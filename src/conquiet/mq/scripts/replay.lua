-- Moves one dead letter back to a partition; a second call finds nothing to move.
--
-- KEYS[1] the dead letters   KEYS[2] the stream of the partition   KEYS[3] what each caller replayed last
-- ARGV[1] the dead letter's id   ARGV[2] the new entry's data   ARGV[3] the caller, which makes one call after the other
--
-- Returns the new entry's id, or false if the dead letter is not there.

local last = redis.call('HGET', KEYS[3], ARGV[3]) or ''
if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then
  -- A client that lost a reply sends its call again by itself; then it was this very call that moved the letter.
  local letter, entry = string.match(last, '^(%S+) (%S+)$')
  return letter == ARGV[1] and entry
end
local id = redis.call('XADD', KEYS[2], '*', 'data', ARGV[2])
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[3], ARGV[1] .. ' ' .. id)
-- Longer than any client goes on repeating a call.
redis.call('PEXPIRE', KEYS[3], 600000)
return id
