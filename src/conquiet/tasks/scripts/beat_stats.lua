-- How many schedules there are, and what is overdue.
--
-- KEYS[1] the beat's meta   KEYS[2] the names   KEYS[3] the due set   KEYS[4] the outbox
-- ARGV[1] now, ms, or ''   ARGV[2] overdue after so long, ms
--
-- Returns {now; schedules; of them waiting for their time; due; overdue; when the oldest was due, or -1; items of the outbox; the
-- leader, or ''; the epoch}.

local now = now_ms(ARGV[1])
local found = redis.call('HMGET', KEYS[1], 'leader', 'epoch', 'expiresAtMs')
local leads = found[1] and (tonumber(found[3]) or 0) > now
return {
  now,
  redis.call('ZCARD', KEYS[2]),
  redis.call('ZCARD', KEYS[3]),
  redis.call('ZCOUNT', KEYS[3], '-inf', now),
  redis.call('ZCOUNT', KEYS[3], '-inf', now - ARGV[2]),
  redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] or '-1',
  redis.call('XLEN', KEYS[4]),
  leads and found[1] or '',
  tonumber(found[2]) or 0,
}
