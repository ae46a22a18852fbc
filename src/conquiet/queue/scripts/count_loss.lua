-- Adds to the record of a loss what one process knows of it, so that all of them together count it once.
--
-- KEYS[1]  the mark, as in check_end.lua
-- ARGV[1]  the epoch   ARGV[2]  how many were lost by the server's count, or 0   ARGV[3]  how many the caller had sent
-- ARGV[4]  the last entry that the caller knows to be lost
--
-- Returns how many more are known to be lost than before.

local field = 'loss:' .. ARGV[1]
local is_read, record = pcall(cjson.decode, redis.call('HGET', KEYS[1], field) or '')
if not is_read or type(record) ~= 'table' then return math.max(1, ARGV[2], ARGV[3]) end
local before = math.max(tonumber(record.lost) or 0, tonumber(record.sent) or 0)
record.lost = math.max(tonumber(record.lost) or 0, ARGV[2])
record.sent = (tonumber(record.sent) or 0) + ARGV[3]
local now = math.max(record.lost, record.sent)
local function order(id) return string.format('%20s-%20s', string.match(tostring(id), '^(%d+)-(%d+)$')) end
if order(ARGV[4]) > order(record.last) then record.last = ARGV[4] end
-- A process that knows only that there is a loss counts as one that knows of one message.
if now == 0 then record.lost, now = 1, 1 end
-- A server that is out of memory allows HSET only after another write of the same script.
redis.call('PEXPIRE', KEYS[1], 30 * 24 * 3600000)
redis.call('HSET', KEYS[1], field, cjson.encode(record))
return now - before
