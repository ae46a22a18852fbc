-- Stands before every script of the task layer: what those need that do nothing but add tasks. What a script defines it defines
-- anew with each run, which takes a fifth of the time of the smallest one.

-- Redis before 7 needs this: TIME and XPENDING are not deterministic, and what follows writes.
if redis.replicate_commands then redis.replicate_commands() end

local GROUP, FEED_LENGTH = 'workers', 20000

-- Makes the group of a priority before its first entry. The first write is one that a server which is full (maxmemory,
-- noeviction), or a user without the right to it, refuses before anything is changed. Returns the time until which events are to
-- be written, ms, or nil.
local function begin_priority(meta, stream, priority)
  local known = redis.call('HMGET', meta, 'p' .. priority, 'listened')
  if not known[1] then
    local made = redis.pcall('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    if made.err and not string.find(made.err, 'BUSYGROUP', 1, true) then error(made.err) end
    redis.call('HSETNX', meta, 'p' .. priority, 1)
  end
  return known[2]
end

-- One event as a listener reads it; `facts` is JSON.
local function change(id, name, kind, ms, facts)
  if type(ms) == 'number' then ms = string.format('%.0f', ms) end
  return '[' .. cjson.encode(id) .. ',' .. cjson.encode(name) .. ',"' .. kind .. '",' .. ms .. ',' .. facts .. ']'
end

-- Adds events to the feed, one entry each, so that their number bounds the memory. The feed expires a minute after the
-- last one. Returns the error if there is one, and raises none: what the events are about is written, and an error would have
-- the caller do it once more.
local function publish(feed, changes)
  for _, one in ipairs(changes) do
    local reply = redis.pcall('XADD', feed, 'MAXLEN', '~', FEED_LENGTH, '*', 'data', one)
    if type(reply) == 'table' and reply.err then return reply.err end
  end
  redis.pcall('PEXPIRE', feed, 60000)
end
