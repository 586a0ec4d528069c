-- Make an instance's record what it should be, in all tiers at once.
--
-- KEYS  1 heartbeats, 2 instance, 3 removed, 4 unhealthy, 5 services (not on a cluster)
-- ARGV  1 'fresh' (whoever had this place has had it) or 'repair'
--       2 id, 3 incarnation, 4 when this incarnation registered ('' the first time)
--       5 ms without a heartbeat after which another incarnation counts as dead
--       6 channel, 7 head of the message, 8 healthy, 9 name of the service
--       10… names and values of fields
-- Gives {'ok', when it registered, now}, {'superseded', by which incarnation} or {'removed'}.

local heartbeats, instance, removed, unhealthy, services = unpack(KEYS)
local mode, id, incarnation, registered, timeout, channel, head, healthy, service = unpack(ARGV, 1, 9)

local now = server_time()
local held = redis.call('HMGET', instance, 'incarnation', 'registrationTime', 'healthy')
local score = tonumber(redis.call('ZSCORE', heartbeats, id) or 0)

if mode ~= 'fresh' then
  local forgotten = redis.call('ZSCORE', removed, id .. ' ' .. incarnation)
  if forgotten and tonumber(forgotten) > now then return {'removed'} end
  if held[1] and held[1] ~= '' and held[1] ~= incarnation and score > now - tonumber(timeout)
      and is_later(held[2], held[1], registered, incarnation) then
    return {'superseded', held[1]}
  end
end
if registered == '' then registered = text(math.max(now, (tonumber(held[2]) or 0) + 1)) end

write(instance, 10, #ARGV, true)
redis.call('HSET', instance, 'registrationTime', registered, 'lastMetadataUpdate', text(now))
now = beat(heartbeats, instance, id, now)
redis.call('SREM', unhealthy, id)
if services then redis.call('SADD', services, service) end
tell(channel, head, action_for(score > 0, held[3], healthy), now)
return {'ok', registered, text(now)}
