-- Creates a group in all of these streams at one moment, unless it is in one of them.
--
-- KEYS the streams
-- ARGV[1] the group   ARGV[2] the id behind which it begins, or '$'   ARGV[3] '1' to create streams that are not there
--
-- Returns 1, 0 if the group was there, or 'no stream'.

for _, stream in ipairs(KEYS) do
  if redis.call('EXISTS', stream) == 1 then
    for _, info in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
      if info[2] == ARGV[1] then return 0 end
    end
  elseif ARGV[3] ~= '1' then
    return 'no stream'
  end
end
-- What is in the streams of a full server is to be consumed.
open_when_full('XACK', KEYS[1], ARGV[1], '0-0')
for _, stream in ipairs(KEYS) do
  if ARGV[3] == '1' then
    redis.call('XGROUP', 'CREATE', stream, ARGV[1], ARGV[2], 'MKSTREAM')
  else
    redis.call('XGROUP', 'CREATE', stream, ARGV[1], ARGV[2])
  end
end
return 1
