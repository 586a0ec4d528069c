-- Write a record of v1 for readers of v1, if nobody else wrote there meanwhile.
--
-- KEYS  1 the hash
-- ARGV  1 the timestamp that was read there ('': there was none), 2… names and values of fields
-- Gives whether it was written.

if (redis.call('HGET', KEYS[1], 'timestamp') or '') ~= ARGV[1] then return 0 end
local problem = write(KEYS[1], 2, #ARGV, true)
if problem then return redis.error_reply(problem) end
return 1
