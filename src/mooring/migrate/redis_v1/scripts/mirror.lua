-- Mirror a v2 instance to v1, unless another writer has changed the record.
--
-- KEYS  1 the hash
-- ARGV  1 the timestamp in the record when it was read ('': none), 2… field names and values
-- Returns 1 if the record was written, else 0.

if (redis.call('HGET', KEYS[1], 'timestamp') or '') ~= ARGV[1] then return 0 end
local problem = write(KEYS[1], 2, #ARGV, true)
if problem then return redis.error_reply(problem) end
return 1
