-- Which tasks are revoked.
--
-- KEYS[1] the revoked tasks   ARGV[1] now, ms, or ''   ARGV[2…] ids of tasks
-- Returns {how many revoked tasks there are; those among the given}.

local now, among = now_ms(ARGV[1]), {}
for i = 2, #ARGV do
  local score = redis.call('ZSCORE', KEYS[1], ARGV[i])
  if score and tonumber(score) > now then among[#among + 1] = ARGV[i] end
end
return {redis.call('ZCARD', KEYS[1]), among}
