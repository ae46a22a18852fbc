-- Adds the rows of one task, each once, however many attempts of the task send it and in whatever order.
--
-- KEYS[1]  the stream
-- KEYS[2]  what this task has added to it: the batch as 20 digits, a digest of 16 characters over all rows so far,
--          then the 8 bytes of each row's hash
-- KEYS[3]  the runs   KEYS[4]  rows of earlier runs: both as in begin_run.lua; neither for a write without a name
-- ARGV[1]  window, ms: how long KEYS[2] is kept after the last call
-- ARGV[2]  the batch as 20 digits
-- ARGV[3]  how many rows of this batch the caller knows to be added
-- ARGV[4]  the digest over those   ARGV[5]  the digest over those and the rows of this call
-- ARGV[6]  the hashes of the rows   ARGV[7]  the run as 20 digits   ARGV[8]  the task
-- ARGV[9…]  the rows; none, to ask what other attempts have added. A row is the field `data`, or with the first byte of an
--            array of MessagePack all fields, names and values in turns
--
-- A row that an earlier run has added counts as added, whichever of its tasks had it.
--
-- Returns 0 if the rows were added. If other attempts have added rows meanwhile, nothing is added and {the digest,
-- the hashes that the caller does not know, how many rows there are} is returned. An error if a later batch or run has begun, or if KEYS[2]
-- has expired.

local stream, added, batch, known = KEYS[1], KEYS[2], ARGV[2], tonumber(ARGV[3])
local begun = redis.call('GETRANGE', added, 0, 35)
local digest = string.sub(begun, 21)
begun = string.sub(begun, 1, 20)
if begun > batch then
  return redis.error_reply('STALEBATCH batch ' .. begun .. ' of the query has begun, this is ' .. batch)
end
local is_named, is_again = KEYS[3], false
if is_named then
  if redis.call('HGET', KEYS[3], 'run') ~= batch .. ARGV[7] then
    return redis.error_reply('STALERUN a later run of the write has begun, or its record has expired')
  end
  is_again = redis.call('EXISTS', KEYS[4]) == 1
end
if begun < batch then
  if #ARGV < 9 then return 0 end
  if known > 0 then return redis.error_reply('FORGOTTEN the dedupe window is over, or the key was evicted') end
  digest = string.rep('0', 16)
  redis.call('SET', added, batch .. digest)
end
if digest ~= ARGV[4] then
  return {digest, redis.call('GETRANGE', added, 36 + 8 * known, -1), math.max(0, redis.call('STRLEN', added) - 36) / 8}
end
local function was_added(at)
  local hash = string.sub(ARGV[6], at, at + 7)
  if redis.call('HEXISTS', KEYS[4], hash) == 0 then return false end
  if redis.call('HINCRBY', KEYS[4], hash, -1) < 1 then redis.call('HDEL', KEYS[4], hash) end
  return true
end
if is_named and #ARGV > 8 then redis.call('HSET', KEYS[3], 't:' .. ARGV[8], ARGV[7]) end
-- No JSON object begins with this byte, and all rows of a call are of one kind.
local are_fields = #ARGV > 8 and string.byte(ARGV[9]) == 0xdd
for i = 9, #ARGV do
  if not (is_again and was_added(8 * (i - 9) + 1)) then
    if are_fields then
      redis.call('XADD', stream, '*', unpack(cmsgpack.unpack(ARGV[i])))
    else
      redis.call('XADD', stream, '*', 'data', ARGV[i])
    end
  end
end
redis.call('SETRANGE', added, 20, ARGV[5])
redis.call('APPEND', added, ARGV[6])
for i = 2, #KEYS do redis.call('PEXPIRE', KEYS[i], ARGV[1]) end
return 0
