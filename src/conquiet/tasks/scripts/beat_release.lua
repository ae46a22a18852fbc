-- Ends the lease of a beat that stops.
--
-- KEYS[1] the beat's meta   ARGV[1] its epoch   Returns whether it led.

if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[1], 'leader', 'expiresAtMs')
return 1
