-- Adds the rows of one task, each once, however many attempts of the task send it and in whatever order.
--
-- KEYS[1]  the stream
-- KEYS[2]  what this task has added to it: the batch as 20 digits, a digest of 16 characters over all rows so far,
--          then the 8 bytes of each row's hash
-- ARGV[1]  window, ms: how long KEYS[2] is kept after the last call
-- ARGV[2]  the batch as 20 digits
-- ARGV[3]  how many rows of this batch the caller knows to be added
-- ARGV[4]  the digest over those   ARGV[5]  the digest over those and the rows of this call
-- ARGV[6]  the hashes of the rows   ARGV[7…]  the rows; none, to ask what other attempts have added
--
-- Returns 0 if the rows were added. If other attempts have added rows meanwhile, nothing is added and {the digest,
-- the hashes that the caller does not know} is returned. An error if a later batch has begun, or if KEYS[2] has
-- expired.

local stream, added, batch, known = KEYS[1], KEYS[2], ARGV[2], tonumber(ARGV[3])
local begun = redis.call('GETRANGE', added, 0, 35)
local digest = string.sub(begun, 21)
begun = string.sub(begun, 1, 20)
if begun > batch then
  return redis.error_reply('STALEBATCH batch ' .. begun .. ' of the query has begun, this is ' .. batch)
end
if begun < batch then
  if #ARGV < 7 then return 0 end
  if known > 0 then return redis.error_reply('FORGOTTEN the dedupe window is over, or the key was evicted') end
  digest = string.rep('0', 16)
  redis.call('SET', added, batch .. digest)
end
if digest ~= ARGV[4] then return {digest, redis.call('GETRANGE', added, 36 + 8 * known, -1)} end
for i = 7, #ARGV do redis.call('XADD', stream, '*', 'data', ARGV[i]) end
redis.call('SETRANGE', added, 20, ARGV[5])
redis.call('APPEND', added, ARGV[6])
redis.call('PEXPIRE', added, ARGV[1])
return 0
