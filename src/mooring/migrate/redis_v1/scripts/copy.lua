-- Copy a v1 instance into all three tiers, unless v2 has precedence.
--
-- KEYS  1 heartbeats, 2 instance, 3 removed, 4 services (not on a cluster)
-- ARGV  1 id, 2 last heartbeat in ms, 3 registration time in ms (0: unknown)
--       4 ms without a heartbeat after which an instance expires
--       5 ms for which a deregistration by an operator is kept
--       6 channel, 7 head of the message, 8 incarnation of copies
--       9 name of the service, 10 healthy, 11… field names and values
-- Returns 'written', 'beat' (the copy had an older heartbeat), 'equal', or the reason why nothing was
-- written: 'own' (a v2 process has registered the instance), 'expired', 'removed' (by an operator).

local heartbeats, instance, removed, services = unpack(KEYS)
local id, heard, registered, timeout, kept, channel, head, mark, service, healthy = unpack(ARGV, 1, 10)
local first = 11  -- the fields in ARGV

local now = server_time()
heard, registered, timeout = tonumber(heard), tonumber(registered), tonumber(timeout)
if heard > now then heard = now end

local current = redis.call('HMGET', instance, 'incarnation', 'registrationTime', 'healthy', 'ephemeral')
local exists = redis.call('EXISTS', instance) == 1
local score = tonumber(redis.call('ZSCORE', heartbeats, id) or 0)
local is_copy = current[1] == mark
if exists and not is_copy and (score > now - timeout or current[4] == 'false') then return 'own' end
if heard <= now - timeout then return 'expired' end

local removed_until = tonumber(redis.call('ZSCORE', removed, id .. ' ' .. mark) or 0)
if removed_until > now then
  local restarted = registered > removed_until - tonumber(kept) and heard >= registered + 1000
  if not restarted then return 'removed' end
end

-- A v1 clock that is ahead must not create a new record each time.
if registered > now then registered = is_copy and tonumber(current[2]) or now end
if registered == 0 then registered = is_copy and tonumber(current[2]) or heard end

local function same()
  if not is_copy or score == 0 or tonumber(current[2]) ~= registered then return false end
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
  publish(channel, head, action_for(score > 0, current[3], healthy), heard)
end
return outcome
