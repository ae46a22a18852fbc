-- Creates a group, also on a full server (maxmemory, noeviction), for what is in the stream
-- to be consumed. There XGROUP CREATE is refused, unless the script has written before.
--
-- KEYS[1]  the stream
-- ARGV[1]  the group   ARGV[2]  the id after which it begins   ARGV[3…]  options of XGROUP CREATE, as MKSTREAM
--
-- Returns OK, or the error of XGROUP CREATE.

-- No entry has this id.
redis.call('XACK', KEYS[1], ARGV[1], '0-0')
return redis.pcall('XGROUP', 'CREATE', KEYS[1], unpack(ARGV))
