-- Release the brake of a service for an operator: silent instances may be evicted.
--
-- KEYS  1 brake
-- ARGV  1 ms for which the release is kept
-- Returns whether it was holding.

if redis.call('HGET', KEYS[1], 'state') ~= 'holding' then return 0 end
redis.call('HSET', KEYS[1], 'state', 'released', 'by', 'operator')
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
