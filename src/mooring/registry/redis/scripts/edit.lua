-- Change one field of a hash, if it is still what was read.
--
-- KEYS  1 the hash
-- ARGV  1 field, 2 what it was ('' for nothing), 3 what it shall be ('' for nothing)
--       4 channel ('' for none), 5 head of the message
-- Gives whether it was still that.

local key, field, before, after, channel, head = KEYS[1], unpack(ARGV)
if (redis.call('HGET', key, field) or '') ~= before then return 0 end
if after == '' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, after) end
if channel ~= '' then tell(channel, head, 'updated', server_time()) end
return 1
