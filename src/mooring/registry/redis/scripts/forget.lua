-- Take out what was said of a service that has no instances. Who was taken out of it, or left, is
-- remembered for as long as before.
--
-- KEYS  1 heartbeats, 2 config, 3 info and 4 services (not on a cluster)
-- ARGV  1 name of the service, 2 channel, 3 head of a message about it
-- Gives whether that could be: 0 while it has instances.

local heartbeats, config, info, services = unpack(KEYS)
local service, channel, head = unpack(ARGV)

if redis.call('EXISTS', heartbeats) == 1 then return 0 end
redis.call('DEL', config)
if info then
  redis.call('HDEL', info, service)
  redis.call('SREM', services, service)
end
tell(channel, head, 'updated', server_time())
return 1
