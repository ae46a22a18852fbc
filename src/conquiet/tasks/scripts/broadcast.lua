-- Adds an entry to a stream of control that is short and expires: a request to all workers, or an answer to one.
--
-- KEYS[1] the stream   ARGV[1] what to add   ARGV[2] about how many entries to keep   ARGV[3] for how long, ms
-- Returns the entry's id.

-- The first write needs no memory: control is for a full server, too.
redis.call('XTRIM', KEYS[1], 'MAXLEN', '~', ARGV[2])
local id = redis.call('XADD', KEYS[1], '*', 'data', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return id
