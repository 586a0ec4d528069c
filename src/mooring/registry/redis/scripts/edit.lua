-- Change a field of a hash, if it still has the value that was read.
--
-- KEYS  1 the hash
-- ARGV  1 field, 2 old value ('' for none), 3 new value ('' for none)
--       4 channel ('' for none), 5 head of the message
-- Returns whether it was changed.

local key, field, before, after, channel, head = KEYS[1], unpack(ARGV)
if (redis.call('HGET', key, field) or '') ~= before then return 0 end
if after == '' then redis.call('HDEL', key, field) else redis.call('HSET', key, field, after) end
if channel ~= '' then publish(channel, head, 'updated', server_time()) end
return 1
