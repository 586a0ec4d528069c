-- Delete the description and the overrides of a service without instances. Redis still remembers
-- the instances that left or were deregistered.
--
-- KEYS  1 heartbeats, 2 config, 3 info and 4 services (not on a cluster)
-- ARGV  1 name of the service, 2 channel, 3 head of a message about it
-- Returns whether they were deleted: 0 if the service has instances.

local heartbeats, config, info, services = unpack(KEYS)
local service, channel, head = unpack(ARGV)

if redis.call('EXISTS', heartbeats) == 1 then return 0 end
redis.call('DEL', config)
if info then
  redis.call('HDEL', info, service)
  redis.call('SREM', services, service)
end
publish(channel, head, 'updated', server_time())
return 1
