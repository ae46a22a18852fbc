-- Writes that a task which was never enqueued has failed, because one before it did.
--
-- KEYS[1] its record   KEYS[2] the events   KEYS[3] the queue's meta   KEYS[4] the feed of listeners
-- ARGV[1] now, ms, or ''   ARGV[2] how long the record is kept, ms   ARGV[3] its id   ARGV[4] its name   ARGV[5] the error
-- ARGV[6] its state
--
-- Returns whether it was written: not if it has a record.

local now = now_ms(ARGV[1])
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('HDEL', KEYS[1], '')
redis.call('HSET', KEYS[1], 'state', ARGV[6], 'name', ARGV[4], 'error', ARGV[5], 'at:' .. now .. ':' .. ARGV[6], '{}')
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 'data', cjson.encode({{ARGV[3], ARGV[4], ARGV[6]}}))
if is_listened(redis.call('HGET', KEYS[3], 'listened'), now) then
  publish(KEYS[4], {change(ARGV[3], ARGV[4], ARGV[6], now, cjson.encode({error = ARGV[5]}))})
end
return 1
