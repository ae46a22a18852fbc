-- Takes a token for a task, or gives the task a time of its own at which there will be one.
--
-- KEYS[1] the bucket, a hash: `next`, when the next token is there, ms, may be past; `interval`, ms between two of them
-- KEYS[2] its reservations, a sorted set: waiting tasks by their times   KEYS[3…12] the waiting sets of priorities 0 to 9
-- ARGV[1] now, ms, or ''   ARGV[2] the task as priority:entry id, or '' for none
-- ARGV[3] how many tokens the bucket has   ARGV[4] ms in which as many come again; 0: there is no limit any more
-- ARGV[5] the longest that the task can wait, ms, or '': one that would have to wait for so long takes no token
--
-- Returns after how many ms the task may begin; 0: now, and the token is taken.

local now, member, capacity, period = now_ms(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local interval = period / capacity

-- A full server refuses a command that may need memory only as the first write of a script. What was not asked for since
-- is revoked, or left behind by a queue that was paused.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - 3600000)

local bucket = redis.call('HMGET', KEYS[1], 'next', 'interval')
local next_token, old_interval = tonumber(bucket[1]), tonumber(bucket[2])

-- The rate was changed: what waits comes sooner or later in proportion.
if next_token and old_interval ~= interval then
  local function moved(time) return now + (time - now) * interval / old_interval end
  local waiting = redis.call('ZRANGEBYSCORE', KEYS[2], now, '+inf', 'WITHSCORES')
  for i = 1, #waiting, 2 do
    local priority, id = string.match(waiting[i], '^(%d):(.*)$')
    local due = moved(tonumber(waiting[i + 1]))
    redis.call('ZADD', KEYS[2], due, waiting[i])
    redis.call('ZADD', KEYS[3 + priority], 'XX', math.ceil(due), id)
  end
  if next_token > now then next_token = moved(next_token) end
end

local wait_ms = 0
local is_free = member == '' or interval == 0
if not is_free then
  local due = tonumber(redis.call('ZSCORE', KEYS[2], member))
  if due then
    -- One that comes late is in time for as long as the bucket would have kept its token.
    is_free = due <= now and due >= now - period
    wait_ms = math.max(0, due - now)
    if due <= now then redis.call('ZREM', KEYS[2], member) end
  end
end
if not is_free and wait_ms == 0 then
  next_token = math.max(next_token or 0, now - period + interval)
  wait_ms = math.max(0, next_token - now)
  if wait_ms < (tonumber(ARGV[5]) or math.huge) then
    if wait_ms > 0 then redis.call('ZADD', KEYS[2], next_token, member) end
    next_token = next_token + interval
  end
end

if interval == 0 then
  redis.call('DEL', KEYS[1], KEYS[2])
elseif next_token then
  redis.call('HSET', KEYS[1], 'next', next_token, 'interval', interval)
  local kept = math.ceil(math.max(next_token - now, 0) + period + 3600000)
  redis.call('PEXPIRE', KEYS[1], kept)
  redis.call('PEXPIRE', KEYS[2], kept)
end
return math.ceil(wait_ms)
