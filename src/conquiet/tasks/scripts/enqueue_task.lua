-- Stands before scripts that enqueue a task by its id.

local WITHOUT_SUCCESS = {revoked = true, expired = true, dead_lettered = true}

-- Enqueues one task, now or later, unless it was enqueued before: its keys are behind the first k, its arguments behind the
-- first a, as enqueue.lua has them; the time is the script's own. Returns as enqueue.lua does.
local function enqueue_task(k, a)
  local now, id, delay, stored = now_ms(ARGV[1]), ARGV[a + 2], tonumber(ARGV[a + 5]), ARGV[a + 10]
  local function before(first)
    if stored == '' then return {first, 0, 0} end
    local kept = ARGV[a + 6] ~= '0' and redis.call('HGET', KEYS[k + 3], 'storedKey')
    -- Without a record the same id may be this very task, sent again after a lost reply.
    if first == id and not kept then return {first, 0, 0} end
    return {first, 0, kept == stored and 0 or 1}
  end
  if ARGV[a + 7] ~= '0' then
    local first = redis.call('GET', KEYS[k + 6])
    -- Of one that has not done its work another one may be enqueued; its record is beside this one's.
    local state = first and redis.call('HGET', string.sub(KEYS[k + 3], 1, -1 - #id) .. first, 'state')
    if first and not WITHOUT_SUCCESS[state] then return before(first) end
  end
  -- Sent again after a lost reply, or a link of a canvas that is enqueued by two workers.
  if ARGV[a + 6] ~= '0' and redis.call('EXISTS', KEYS[k + 3]) == 1 then return before(id) end
  local listened
  if delay > 0 then
    listened = redis.call('HMGET', KEYS[k + 1], 'listened')[1]
  else
    listened = begin_priority(KEYS[k + 1], KEYS[k + 2], ARGV[a + 4])
  end
  -- What the task is known by comes before it: if that is refused, as by a full server or to a user without the right, nothing is
  -- enqueued, and a caller who tries again doubles nothing. It goes again if the task itself is refused. The first write is one
  -- that a full server refuses, which lets a script go on that has written anything.
  local function try(...)
    local reply = redis.pcall(...)
    if type(reply) == 'table' and reply.err then
      if ARGV[a + 6] ~= '0' then redis.pcall('PEXPIRE', KEYS[k + 3], 0) end
      if ARGV[a + 7] ~= '0' then redis.pcall('PEXPIRE', KEYS[k + 6], 0) end
      error(reply.err)
    end
  end
  if ARGV[a + 6] ~= '0' then
    redis.call('HSET', KEYS[k + 3], 'state', 'queued', 'name', ARGV[a + 8], 'at:' .. now .. ':queued', ARGV[a + 9])
    try('PEXPIRE', KEYS[k + 3], delay + ARGV[a + 6])
    if stored ~= '' then try('HSET', KEYS[k + 3], 'storedKey', stored) end
  end
  if ARGV[a + 7] ~= '0' then try('SET', KEYS[k + 6], id, 'PX', ARGV[a + 7]) end
  if delay > 0 then
    try('HSET', KEYS[k + 5], id, ARGV[a + 4] .. ':' .. ARGV[a + 3])
    try('ZADD', KEYS[k + 4], now + delay, id)
  else
    try('XADD', KEYS[k + 2], '*', 'data', ARGV[a + 3])
  end
  if is_listened(listened, now) then publish(KEYS[k + 7], {change(id, ARGV[a + 8], 'queued', now, ARGV[a + 9])}) end
  return {id, 1, 0}
end

