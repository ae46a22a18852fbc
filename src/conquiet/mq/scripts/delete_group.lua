-- Deletes a group from partitions, with its leases, retries and failures, unless that would lose messages.
--
-- KEYS for each partition: the stream, the lease, the waiting set, the failures
-- ARGV[1] the group   ARGV[2] 'count' to change nothing, 'delete' to delete it, 'force' even if something is pending
--
-- Returns how many entries are pending in each partition; with 'delete' and any of them above 0, nothing is deleted.

local group, pending, is_finished = ARGV[1], {}, true
for i = 1, #KEYS, 4 do
  local number = redis.call('XPENDING', KEYS[i], group)[1]
  pending[#pending + 1] = number
  is_finished = is_finished and number == 0
end
if ARGV[2] == 'count' or (ARGV[2] == 'delete' and not is_finished) then return pending end
for i = 1, #KEYS, 4 do
  -- Before Redis 7 every XGROUP counts as one that may need memory.
  open_when_full('XDEL', KEYS[i], '0-0')
  redis.call('XGROUP', 'DESTROY', KEYS[i], group)
  -- The epoch stays: a worker that slept through this must not meet its own number again.
  redis.call('DEL', KEYS[i + 1], KEYS[i + 2], KEYS[i + 3])
end
return pending
