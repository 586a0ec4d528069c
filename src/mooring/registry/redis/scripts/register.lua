-- Write the record of an instance in all tiers.
--
-- KEYS  1 heartbeats, 2 instance, 3 removed, 4 persistent, 5 services (not on a cluster)
-- ARGV  1 'fresh' (replaces a predecessor), 'again' (the reply to 'fresh' was lost: replaces a
--         predecessor from before that), 'repair', or 'back' (an instance returns on its own, even
--         after it left)
--       2 id, 3 incarnation, 4 the place of the incarnation (see deregister)
--       5 when this incarnation registered ('' the first time; for 'again': ms since the first attempt)
--       6 ms without a heartbeat after which another incarnation counts as dead
--       7 channel, 8 head of the message, 9 healthy, 10 name of the service
--       11… names and values of fields
-- Returns {'ok', when it registered, now}, {'superseded', its incarnation} or {'removed'}.

local heartbeats, instance, removed, persistent, services = unpack(KEYS)
local mode, id, incarnation, place, registered = unpack(ARGV, 1, 5)
local timeout, channel, head, healthy, service = unpack(ARGV, 6, 10)

-- Read all keys before writing: a key of a wrong type must fail the whole script.
local now = server_time()
local held = redis.call('HMGET', instance, 'incarnation', 'registrationTime', 'healthy')
local score = tonumber(redis.call('ZSCORE', heartbeats, id) or 0)
redis.call('ZCARD', persistent)
if services then redis.call('SISMEMBER', services, service) end

local function forgotten(place_or_incarnation)
  local expiry = redis.call('ZSCORE', removed, id .. ' ' .. place_or_incarnation)
  return not expiry or tonumber(expiry) <= now
end

local since = registered
if mode == 'again' then since, registered = text(now - tonumber(registered)), '' end
if mode ~= 'fresh' and held[1] and held[1] ~= '' and held[1] ~= incarnation
    and score > now - tonumber(timeout) and is_later(held[2], held[1], since, incarnation) then
  return {'superseded', held[1]}
end
if not forgotten(incarnation) or (mode ~= 'back' and not forgotten(place)) then return {'removed'} end
if (mode == 'repair' or mode == 'back') and not forgotten('') then return {'removed'} end
if registered == '' then
  -- Sent twice, because the reply was lost, it is still the same registration.
  local before = tonumber(held[2]) or 0
  registered = held[1] == incarnation and before > 0 and held[2] or text(math.max(now, before + 1))
end

local problem = write(instance, 11, #ARGV, true)
if problem then
  if held[1] == incarnation and score > 0 then  -- out of memory: a heartbeat takes none
    allow_writes(persistent)
    beat(heartbeats, persistent, instance, id, redis.call('HGET', instance, 'ephemeral'), now)
  end
  return redis.error_reply(problem)
end
if mode == 'back' then
  redis.call('ZREM', removed, id .. ' ' .. place)
elseif mode ~= 'repair' then
  redis.call('ZREM', removed, id .. ' ')
end
redis.call('HSET', instance, 'registrationTime', registered, 'lastMetadataUpdate', text(now))
redis.call('ZREM', persistent, id)
local ephemeral = redis.call('HGET', instance, 'ephemeral')
now = beat(heartbeats, persistent, instance, id, ephemeral, now)
if services then redis.call('SADD', services, service) end
publish(channel, head, action_for(score > 0, held[3], healthy), now)
return {'ok', registered, text(now)}
