-- Publishes an event of a task that is no change of its state, if anybody listens.
--
-- KEYS[1] the queue's meta   KEYS[2] the feed of listeners
-- ARGV[1] now, ms, or ''   ARGV[2] the task's id   ARGV[3] its name   ARGV[4] what happened   ARGV[5] facts, JSON
-- Returns whether anybody listens.

local now = now_ms(ARGV[1])
if not is_listened(redis.call('HGET', KEYS[1], 'listened'), now) then return 0 end
local problem = publish(KEYS[2], {change(ARGV[2], ARGV[3], ARGV[4], now, ARGV[5])})
-- Nothing else was written.
if problem then return redis.error_reply(problem) end
return 1
