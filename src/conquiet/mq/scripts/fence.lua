-- Stands before every script of the MQ: the server's clock, and whether the caller still owns the partition.
-- A lease is a hash: owner, instance, epoch, expiresAtMs, ttlMs, turn. An expired lease has no owner, even if the key is still
-- there, and so has one that does not say when it expires.

-- Redis before 7 needs this: TIME and XPENDING are not deterministic, and what follows writes.
if redis.replicate_commands then redis.replicate_commands() end

-- The caller may give its own time, as tests do; an empty string means the server's.
local function now_ms(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Opens a script to a server that is full (maxmemory, noeviction). Redis refuses a command that may need memory, as HSET
-- or XADD, only while the script has not written: so this writes first, what changes nothing. It is for the scripts by which
-- messages are consumed, which a full server needs most; what adds messages must be refused.
local function open_when_full(...)
  redis.call(...)
end

-- What a field should be: a whole number of milliseconds. Lua also takes 'inf', by which a lease would never end.
local function whole(text)
  return text and #text < 16 and string.find(text, '^%-?%d+$') and tonumber(text) or nil
end

local function owns(lease, owner, epoch, now)
  local fields = redis.call('HMGET', lease, 'owner', 'epoch', 'expiresAtMs')
  return fields[1] == owner and fields[2] == epoch and (whole(fields[3]) or 0) > now
end

-- A client that lost a reply may send its call again by itself; what the first call delivered would never be handled. So
-- each call that changes something has its turn, and a second one with the same turn changes nothing.
local function is_repeated(lease, turn)
  return redis.call('HGET', lease, 'turn') ~= turn
end

-- Replies begin with what they answer. An interrupt may leave a connection with a reply that was not read, and the
-- next caller must not take it for its own: entries of two partitions often have the same ids.
local function answer(state, ...)
  return {KEYS[1], ARGV[2], ARGV[5], state, ...}
end

-- Of a script whose ARGV begins with owner, epoch, now, group and turn: the answer that ends it, or nil to go on.
local function refusal(now)
  if not owns(KEYS[1], ARGV[1], ARGV[2], now) then return answer('lost') end
  if is_repeated(KEYS[1], ARGV[5]) then return answer('repeated') end
  open_when_full('HDEL', KEYS[1], '')
end

local function end_turn(lease)
  redis.call('HINCRBY', lease, 'turn', 1)
end

-- The bytes of an entry's fields: a batch is bounded by them, too.
local function bytes_of(fields)
  if #fields == 2 then return #fields[2] end
  local bytes = 0
  for _, part in ipairs(fields) do bytes = bytes + #part end
  return bytes
end

-- The ids of up to `most` entries of an interval, and whether those are all. XRANGE returns what is in the entries, too:
-- a few at a time, and no more after 8 MiB, since the server does nothing else meanwhile.
local function ids_between(stream, first, last, most)
  local ids, bytes = {}, 0
  while #ids < most and bytes < 8388608 do
    local count = math.min(10, most - #ids)
    local some = redis.call('XRANGE', stream, first, last, 'COUNT', count)
    for _, entry in ipairs(some) do
      ids[#ids + 1] = entry[1]
      bytes = bytes + bytes_of(entry[2])
    end
    if #some < count then return ids, true end
    first = '(' .. ids[#ids]
  end
  return ids, false
end

-- Pending at this consumer, at this delivery count: no other one has taken the entry since.
local function is_still_pending(stream, group, owner, id, count)
  local pending = redis.call('XPENDING', stream, group, id, id, 1)[1]
  return pending and pending[2] == owner and pending[4] == tonumber(count)
end

-- Claims one pending entry and returns {id, fields, delivery count, last failure or ''}; nil if the stream no longer
-- has it. The count stays as it is: what is taken up is counted when its handler begins.
local function claim(stream, group, owner, id, count, failures)
  local entry = redis.call('XCLAIM', stream, group, owner, 0, id, 'RETRYCOUNT', count)[1]
  if not entry then
    -- Redis 7 has forgotten a deleted entry by now, 6.2 would keep it pending for ever.
    redis.call('XACK', stream, group, id)
    redis.call('HDEL', failures, id)
    return nil
  end
  return {entry[1], entry[2], count, redis.call('HGET', failures, id) or ''}
end

-- An empty stream, unless the key is there. Also on a full server: a topic that lacks one is not consumed.
local function create_stream(key)
  if redis.call('EXISTS', key) == 0 then
    open_when_full('XDEL', key, '0-0')
    redis.call('XGROUP', 'CREATE', key, 'created', '$', 'MKSTREAM')
    redis.call('XGROUP', 'DESTROY', key, 'created')
  end
end
