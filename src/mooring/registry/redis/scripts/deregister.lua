-- Take an instance out of all tiers, and remember it for a while: a registration that was sent
-- before, and is carried out after, brings nothing back.
--
-- KEYS  1 heartbeats, 2 instance, 3 removed, 4 persistent, 5 services (not on a cluster)
-- ARGV  1 id, 2 incarnation whose record it must be ('': whoever is there, by an operator)
--       3 its place: one registration of that incarnation, which may have another later
--       4 ms for which it is remembered, 5 channel, 6 head of the message, 7 name of the service
-- Gives {whether it was there, whether the service has none left}.

local heartbeats, instance, removed, persistent, services = unpack(KEYS)
local id, incarnation, place, kept, channel, head, service = unpack(ARGV)

local now = server_time()
local held = redis.call('HGET', instance, 'incarnation') or ''
local there = redis.call('ZSCORE', heartbeats, id) or redis.call('EXISTS', instance) == 1
if there and incarnation ~= '' and held ~= '' and held ~= incarnation then there = false end
redis.call('ZCARD', removed)
make_way(persistent)

if there or incarnation ~= '' then
  redis.call('ZREMRANGEBYSCORE', removed, '-inf', text(now))
  redis.call('ZADD', removed, text(now + tonumber(kept)), id .. ' ' .. (incarnation == '' and held or place))
  if redis.call('PTTL', removed) < tonumber(kept) then redis.call('PEXPIRE', removed, kept) end
end
if there then
  redis.call('ZREM', heartbeats, id)
  redis.call('ZREM', persistent, id)
  redis.call('DEL', instance)
  tell(channel, head, 'removed', now)
end
local empty = redis.call('EXISTS', heartbeats) == 0
if empty and services then redis.call('SREM', services, service) end
return {there and 1 or 0, empty and 1 or 0}
