-- Signs of life of any number of instances of one service. It never makes a record: of one that is
-- gone, or half gone, it says so, and the instance registers again.
--
-- KEYS  1 heartbeats, 2 unhealthy, 3 services (only where ARGV[2] is 1), then each instance's hash
-- ARGV  1 channel, 2 whether tier 1 is at hand (1 or 0), 3 name of the service
--       then for each instance: id, incarnation, when it registered, healthy, head of the message,
--       how many of the following belong to it, names and values of fields. Without fields it is
--       `heartbeat_only`, with them `metadata_update`.
-- Gives for each 'ok', 'gone', 'superseded', or the error that its record caused.

local channel, tier1 = ARGV[1], ARGV[2] == '1'
local heartbeats, unhealthy = KEYS[1], KEYS[2]
local now = server_time()

local function one(instance, at)
  local id, incarnation, registered, healthy, head = unpack(ARGV, at, at + 4)
  local last = at + 5 + tonumber(ARGV[at + 5])
  local held = redis.pcall(
    'HMGET', instance, 'incarnation', 'registrationTime', 'healthy', 'ephemeral')
  if held.err then return held.err end
  if not redis.call('ZSCORE', heartbeats, id) or not held[1] then return 'gone' end
  if held[1] ~= incarnation then
    if is_later(held[2], held[1], registered, incarnation) then return 'superseded' end
    return 'gone'
  end
  local then_ = beat(heartbeats, instance, id, now)
  if last > at + 5 then
    write(instance, at + 6, last, false)
    redis.call('HSET', instance, 'lastMetadataUpdate', text(now))
    tell(channel, head, action_for(true, held[3], healthy), then_)
  end
  if held[4] == 'false' and redis.call('SREM', unhealthy, id) == 1 then
    redis.call('HSET', instance, 'healthy', healthy)
    if healthy == 'true' then tell(channel, head, 'health_recovery', then_) end
  end
  return 'ok'
end

local results, at = {}, 4
for i = tier1 and 4 or 3, #KEYS do
  results[#results + 1] = one(KEYS[i], at)
  at = at + 6 + tonumber(ARGV[at + 5])
end
if tier1 and redis.call('EXISTS', heartbeats) == 1 then
  redis.call('SADD', KEYS[3], ARGV[3])
end
return results
