-- Acquire, renew or release the lease of the leader.
--
-- KEYS  1 leader
-- ARGV  1 id of the candidate  2 ms for which it leads; 0: release
-- Returns whether the candidate leads.

local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
