-- Remove a copy of a v1 instance from all tiers; records of v2 processes stay.
--
-- KEYS  1 heartbeats, 2 instance, 3 services (not on a cluster)
-- ARGV  1 id, 2 incarnation of copies, 3 channel, 4 head of the message
--       5 name of the service
-- Returns {whether it was removed, whether the service has no instances left}.

local heartbeats, instance, services = unpack(KEYS)
local id, mark, channel, head, service = unpack(ARGV)

local is_copy = redis.call('HGET', instance, 'incarnation') == mark
if is_copy then
  redis.call('ZREM', heartbeats, id)
  redis.call('DEL', instance)
  publish(channel, head, 'removed', server_time())
end
local empty = redis.call('EXISTS', heartbeats) == 0
if empty and services then redis.call('SREM', services, service) end
return {is_copy and 1 or 0, empty and 1 or 0}
