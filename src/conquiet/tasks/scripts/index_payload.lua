-- Writes into the index that content is about to be stored.
--
-- KEYS[1] the index   ARGV[1] the content's key   ARGV[2] its facts, JSON   ARGV[3] '1': on a full server too

-- A full server refuses a command that may need memory only as the first write of a script; this one needs none.
if ARGV[3] == '1' then redis.call('HDEL', KEYS[1], '') end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
