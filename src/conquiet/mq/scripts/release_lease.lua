-- Gives up the caller's lease.
--
-- KEYS[1] the lease
-- ARGV[1] the owner   ARGV[2] the epoch   ARGV[3] now, ms, or ''
--
-- Returns {the lease, the epoch, 1, or 0 if it was not the caller's any more}.

if not owns(KEYS[1], ARGV[1], ARGV[2], now_ms(ARGV[3])) then return {KEYS[1], ARGV[2], 0} end
return {KEYS[1], ARGV[2], redis.call('DEL', KEYS[1])}
