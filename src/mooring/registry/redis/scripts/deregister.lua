-- Delete an instance from all tiers, and remember it for a while: a registration that was sent
-- before and arrives later does not restore it.
--
-- KEYS  1 heartbeats, 2 instance, 3 removed, 4 persistent, 5 services (not on a cluster)
-- ARGV  1 id, 2 the incarnation that must own the record ('': any, for an operator)
--       3 its place: one of the registrations of that incarnation
--       4 ms for which it is remembered, 5 channel, 6 head of the message, 7 name of the service
-- Returns {whether it was registered, whether the service is empty}.

local heartbeats, instance, removed, persistent, services = unpack(KEYS)
local id, incarnation, place, kept, channel, head, service = unpack(ARGV)

local now = server_time()
local held = redis.call('HGET', instance, 'incarnation') or ''
local existed = redis.call('ZSCORE', heartbeats, id) or redis.call('EXISTS', instance) == 1
if existed and incarnation ~= '' and held ~= '' and held ~= incarnation then existed = false end
redis.call('ZCARD', removed)
allow_writes(persistent)

if existed or incarnation ~= '' then
  redis.call('ZREMRANGEBYSCORE', removed, '-inf', text(now))
  local which = incarnation == '' and held or place
  redis.call('ZADD', removed, text(now + tonumber(kept)), id .. ' ' .. which)
  if redis.call('PTTL', removed) < tonumber(kept) then redis.call('PEXPIRE', removed, kept) end
end
if existed then
  redis.call('ZREM', heartbeats, id)
  redis.call('ZREM', persistent, id)
  redis.call('DEL', instance)
  publish(channel, head, 'removed', now)
end
local empty = redis.call('EXISTS', heartbeats) == 0
if empty and services then redis.call('SREM', services, service) end
return {existed and 1 or 0, empty and 1 or 0}
