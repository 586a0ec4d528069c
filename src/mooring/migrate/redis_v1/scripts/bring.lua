-- Bring an instance of v1 into the three tiers, whole, unless v2 knows better.
--
-- KEYS  1 heartbeats, 2 instance, 3 removed, 4 services (not on a cluster)
-- ARGV  1 id, 2 its last heartbeat in ms, 3 when it registered, in ms (0: it does not say)
--       4 ms without a heartbeat after which an instance counts as dead
--       5 ms for which an operator's word is kept
--       6 channel, 7 head of the message, 8 incarnation of what comes from v1
--       9 name of the service, 10 healthy, 11… names and values of fields
-- Gives 'written', 'beat' (it was there, and had an older heartbeat), 'equal', or why nothing was
-- written: 'own' (a process that speaks v2 has its place), 'expired', 'removed' (by an operator).

local heartbeats, instance, removed, services = unpack(KEYS)
local id, heard, registered, timeout, kept, channel, head, mark, service, healthy = unpack(ARGV, 1, 10)
local first = 11

local now = server_time()
heard, registered, timeout = tonumber(heard), tonumber(registered), tonumber(timeout)
if heard > now then heard = now end

local held = redis.call('HMGET', instance, 'incarnation', 'registrationTime', 'healthy', 'ephemeral')
local there = redis.call('EXISTS', instance) == 1
local score = tonumber(redis.call('ZSCORE', heartbeats, id) or 0)
if there and held[1] ~= mark and (score > now - timeout or held[4] == 'false') then return 'own' end
if heard <= now - timeout then return 'expired' end

local forgotten = tonumber(redis.call('ZSCORE', removed, id .. ' ' .. mark) or 0)
if forgotten > now then
  local anew = registered > forgotten - tonumber(kept) and heard >= registered + 1000
  if not anew then return 'removed' end
end

-- A clock of v1 that is ahead must not make the record a new one each time.
if registered > now then registered = held[1] == mark and tonumber(held[2]) or now end
if registered == 0 then registered = held[1] == mark and tonumber(held[2]) or heard end

local function same()
  if held[1] ~= mark or score == 0 or tonumber(held[2]) ~= registered then return false end
  if redis.call('HLEN', instance) ~= (#ARGV - first + 1) / 2 + 3 then return false end
  for i = first, #ARGV, 2 do
    if redis.call('HGET', instance, ARGV[i]) ~= ARGV[i + 1] then return false end
  end
  return true
end

local outcome = 'equal'
if not same() then
  local problem = write(instance, first, #ARGV, true)
  if problem then return redis.error_reply(problem) end
  redis.call('HSET', instance, 'registrationTime', text(registered), 'lastMetadataUpdate', text(now))
  outcome = 'written'
elseif heard > score then
  outcome = 'beat'
end
if outcome ~= 'equal' then
  if score > heard then heard = score end  -- scores never move backwards
  redis.call('HSET', instance, 'heartbeat', text(heard))
  redis.call('ZADD', heartbeats, text(heard), id)
end
if services then redis.call('SADD', services, service) end
if outcome == 'written' then
  tell(channel, head, action_for(score > 0, held[3], healthy), heard)
end
return outcome
