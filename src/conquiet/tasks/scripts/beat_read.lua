-- A schedule as it is written.
--
-- KEYS[1] the schedule   KEYS[2] the due set   ARGV[1] now, ms, or ''   ARGV[2] its name
-- Returns {now, when it is due or '', its fields and values}.

return {now_ms(ARGV[1]), redis.call('ZSCORE', KEYS[2], ARGV[2]) or '', redis.call('HGETALL', KEYS[1])}
