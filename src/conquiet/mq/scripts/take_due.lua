-- Takes entries whose retry is due; they come back under their own ids, and are counted when they begin.
--
-- KEYS[1] the lease   KEYS[2] the stream   KEYS[3] the waiting set   KEYS[4] the failures
-- ARGV[1] the owner   ARGV[2] the epoch   ARGV[3] now, ms, or ''   ARGV[4] the group   ARGV[5] the turn
-- ARGV[6] how many   ARGV[7] no further one after so many bytes
--
-- Answers 'lost', 'repeated', or 'done' with entries, ms until the next one is due or -1, ids that are gone: acked by
-- hand, or no longer in the stream; and what is no id: it is due again in a minute, so that it delays no others.

local owner, group, now = ARGV[1], ARGV[4], now_ms(ARGV[3])
local refused = refusal(now)
if refused then return refused end
local entries, gone, unknown, bytes = {}, {}, {}, 0
local function take(id)
  local pending = redis.call('XPENDING', KEYS[2], group, id, id, 1)[1]
  local entry = pending and claim(KEYS[2], group, owner, id, pending[4], KEYS[4])
  if entry then
    entries[#entries + 1] = entry
    bytes = bytes + bytes_of(entry[2])
  else
    gone[#gone + 1] = id
    redis.call('HDEL', KEYS[4], id)
  end
  redis.call('ZREM', KEYS[3], id)
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, ARGV[6])) do
  if bytes >= tonumber(ARGV[7]) then break end
  local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
  if ms and #ms < 20 and #sequence < 20 then
    take(id)
  else
    unknown[#unknown + 1] = id
    redis.call('ZADD', KEYS[3], now + 60000, id)
  end
end
if #entries + #gone > 0 then end_turn(KEYS[1]) end
local next_due = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2]
return answer('done', entries, next_due and math.max(0, tonumber(next_due) - now) or -1, gone, unknown)
