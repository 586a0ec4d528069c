-- Take out of all tiers what came from v1; a record of anybody else stays.
--
-- KEYS  1 heartbeats, 2 instance, 3 services (not on a cluster)
-- ARGV  1 id, 2 incarnation of what comes from v1, 3 channel, 4 head of the message
--       5 name of the service
-- Gives {whether it was there, whether the service has none left}.

local heartbeats, instance, services = unpack(KEYS)
local id, mark, channel, head, service = unpack(ARGV)

local there = redis.call('HGET', instance, 'incarnation') == mark
if there then
  redis.call('ZREM', heartbeats, id)
  redis.call('DEL', instance)
  tell(channel, head, 'removed', server_time())
end
local empty = redis.call('EXISTS', heartbeats) == 0
if empty and services then redis.call('SREM', services, service) end
return {there and 1 or 0, empty and 1 or 0}
