-- Makes the message of a plain stream's dead letter pending again, for its group alone and under its own id; a second
-- call finds no letter.
--
-- KEYS[1] the dead letters   KEYS[2] the stream   KEYS[3] the last letter that each caller replayed
-- KEYS[4] the group's lease   KEYS[5] the group's waiting set
-- ARGV[1] the dead letter's id   ARGV[2] the entry's id   ARGV[3] the group
-- ARGV[4] the caller, which makes one call after the other   ARGV[5] '1' to change nothing
--
-- Returns 'replayed', 'no letter', 'trimmed' if the stream no longer has the entry, or 'no group'.

if #redis.call('XRANGE', KEYS[1], ARGV[1], ARGV[1]) == 0 then
  -- A client that lost a reply sends its call again by itself; then it was this very call that replayed the letter.
  return redis.call('HGET', KEYS[3], ARGV[4]) == ARGV[1] .. ' ' .. ARGV[2] and 'replayed' or 'no letter'
end
if #redis.call('XRANGE', KEYS[2], ARGV[2], ARGV[2]) == 0 then return 'trimmed' end
local pending = redis.pcall('XPENDING', KEYS[2], ARGV[3], ARGV[2], ARGV[2], 1)
if pending.err then return string.find(pending.err, 'NOGROUP', 1, true) and 'no group' or pending end
if ARGV[5] == '1' then return 'replayed' end
-- An entry that is pending already was delivered again, as after a reset of the group: it stays with its consumer.
if #pending == 0 then
  -- Idle since 1970, as what was handed back: the next drain or claim takes it.
  redis.call('XCLAIM', KEYS[2], ARGV[3], 'replay', 0, ARGV[2], 'TIME', 0, 'RETRYCOUNT', 0, 'FORCE', 'JUSTID')
  -- A consumer that owns the stream as a partition takes it at once only as one whose retry is due.
  if redis.call('EXISTS', KEYS[4]) == 1 then redis.call('ZADD', KEYS[5], 0, ARGV[2]) end
end
redis.call('XDEL', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[3], ARGV[4], ARGV[1] .. ' ' .. ARGV[2])
-- Longer than any client goes on repeating a call.
redis.call('PEXPIRE', KEYS[3], 600000)
return 'replayed'
