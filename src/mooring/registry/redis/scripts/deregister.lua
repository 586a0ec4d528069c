-- Take an instance out of all tiers.
--
-- KEYS  1 heartbeats, 2 instance, 3 removed, 4 unhealthy, 5 services (not on a cluster)
-- ARGV  1 id, 2 incarnation whose record it must be ('': whoever is there, by an operator)
--       3 ms for which an operator's word is kept, 4 channel, 5 head of the message
--       6 name of the service
-- Gives {whether it was there, whether the service has none left}.

local heartbeats, instance, removed, unhealthy, services = unpack(KEYS)
local id, incarnation, kept, channel, head, service = unpack(ARGV)

local now = server_time()
local held = redis.call('HGET', instance, 'incarnation') or ''
local there = redis.call('ZSCORE', heartbeats, id) or redis.call('EXISTS', instance) == 1
if there and incarnation ~= '' and held ~= '' and held ~= incarnation then there = false end

if there then
  if incarnation == '' then
    redis.call('ZADD', removed, text(now + tonumber(kept)), id .. ' ' .. held)
    redis.call('ZREMRANGEBYSCORE', removed, '-inf', text(now))
    redis.call('PEXPIRE', removed, kept)
  end
  redis.call('ZREM', heartbeats, id)
  redis.call('DEL', instance)
  redis.call('SREM', unhealthy, id)
  tell(channel, head, 'removed', now)
end
local empty = redis.call('EXISTS', heartbeats) == 0
if empty and services then redis.call('SREM', services, service) end
return {there and 1 or 0, empty and 1 or 0}
