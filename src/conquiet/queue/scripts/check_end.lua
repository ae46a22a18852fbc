-- Compares what a process knows of a stream's end with the stream, and writes down where the stream ends now.
--
-- A replica has what its primary had at an earlier time, of all keys. So after a failover the mark, which was written after
-- the entry that it names, never names an entry behind the stream's end: if it does, the stream was deleted or created again.
--
-- KEYS[1]  the stream   KEYS[2]  the mark: lastId, epoch, and 'loss:' with an epoch, as JSON
-- ARGV[1]  'deleted' or 'not deleted' if the caller has asked whether the stream was deleted with its topic, which takes the
--          mark away; '' if it has not
-- ARGV[2]  the epoch that the caller knows   ARGV[3]  1 if the caller has seen the mark before
-- ARGV[4]  entries ever added, as the caller knows, or ''   ARGV[5]  who calls
-- ARGV[6…] entry ids that were in the stream, newest first, each with the digest of its fields; '' if that is not known, '-' if
--          the entry itself may be gone
--
-- Returns {state, the last id, its digest, entries ever added or '', epoch, the last id before the loss, whether that is
-- exact, the newest of the caller's entries that is lost, how many were lost or ''}. State: 'kept', 'lost', 'deleted', or
-- 'unmarked': lost or deleted, the caller has to ask, and nothing was written.

-- Redis before 7 needs this: TIME is not deterministic, and what follows writes.
if redis.replicate_commands then redis.replicate_commands() end

local function digest(entry)
  return redis.sha1hex(string.sub(table.concat(entry[2]), 1, 1024))
end

-- Ids as they are sorted: the parts of an id may have any number of digits.
local function order(id)
  local ms, number = string.match(id, '^(%d+)-(%d+)$')
  if not ms then return '' end
  return string.format('%20s-%20s', ms, number)
end

local info, reply = {}, redis.pcall('XINFO', 'STREAM', KEYS[1])
if reply.err and not string.find(reply.err, 'no such key', 1, true) then return reply end
for i = 1, reply.err and 0 or #reply, 2 do info[reply[i]] = reply[i + 1] end
local last, added = info['last-generated-id'] or '0-0', info['entries-added'] or ''
local first, newest = info['first-entry'], info['last-entry']
local newest_digest = newest and newest[1] == last and digest(newest) or '-'
local marked = redis.call('HMGET', KEYS[2], 'lastId', 'epoch')
local known_epoch, epoch = tonumber(ARGV[2]), tonumber(marked[2] or '') or 0

local function is_deleted()
  if marked[1] then return reply.err or order(last) < order(marked[1]) end
  return ARGV[1] == 'deleted'
end

local function is_lost(id, known_digest)
  if order(id) > order(last) then return true end
  if known_digest == '-' then return false end
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  if entry then return known_digest ~= '' and digest(entry) ~= known_digest end
  -- Before the first entry it was trimmed, unless the mark is gone, too: then the server has lost everything.
  if not first or order(first[1]) > order(id) then return not marked[1] and ARGV[3] == '1' end
  return order(info['max-deleted-entry-id'] or '0-0') < order(id)
end

local state, lost_up_to = 'kept', ''
if ARGV[6] ~= '0-0' and is_deleted() then
  state = 'deleted'
else
  for i = 6, #ARGV, 2 do
    if is_lost(ARGV[i], ARGV[i + 1]) then
      state, lost_up_to = 'lost', ARGV[i]
      break
    end
  end
end

-- A failover that has lost the mark, too, and a deletion look alike.
if state == 'lost' and not marked[1] and ARGV[1] == '' then
  return {'unmarked', last, newest_digest, added, epoch, '', 0, lost_up_to, ''}
end

-- Nobody deletes the mark of a stream that is gone. Also, a server that is out of memory allows HSET only after another
-- write of the same script.
local month_ms = 30 * 24 * 3600000
local is_new = (state == 'lost' or marked[1] ~= last) and redis.call('PEXPIRE', KEYS[2], month_ms) == 0
local after, is_exact, lost = '', 0, ''
if state == 'lost' then
  local text = epoch > known_epoch and redis.call('HGET', KEYS[2], 'loss:' .. epoch)
  local is_read, record = pcall(cjson.decode, text or '')
  if not (is_read and type(record) == 'table' and type(record.after) == 'string') then
    epoch = math.max(epoch, known_epoch) + 1
    local is_end = order(last) < order(ARGV[6])
    record = {after = is_end and last or marked[1] or '0-0', isExact = is_end, last = lost_up_to, lost = 0, sent = 0,
      added = is_end and tonumber(added) or nil, seenAtMs = redis.call('TIME')[1] * 1000, seenBy = ARGV[5]}
    redis.call('HDEL', KEYS[2], 'loss:' .. (epoch - 10))
  end
  if type(record.last) ~= 'string' or order(record.last) < order(lost_up_to) then record.last = lost_up_to end
  after, is_exact = record.after, record.isExact and 1 or 0
  if record.added and ARGV[4] ~= '' then lost = math.max(0, ARGV[4] - record.added) end
  redis.call('HSET', KEYS[2], 'epoch', epoch, 'loss:' .. epoch, cjson.encode(record))
end
if not reply.err and marked[1] ~= last then redis.call('HSET', KEYS[2], 'lastId', last) end
if is_new then redis.call('PEXPIRE', KEYS[2], month_ms) end
return {state, last, newest_digest, added, epoch, after, is_exact, lost_up_to, lost}
