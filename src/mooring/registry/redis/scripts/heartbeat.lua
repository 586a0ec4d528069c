-- Signs of life of any number of instances of one service. It never makes a record: of one that is
-- gone, or half gone, it says so, and the instance registers again.
--
-- KEYS  1 heartbeats, 2 persistent, 3 services (only where ARGV[2] is 1), then each instance's hash
-- ARGV  1 channel, 2 whether tier 1 is at hand (1 or 0), 3 name of the service
--       then for each instance: id, incarnation, when it registered, healthy, head of the message,
--       how many of the following belong to it, names and values of fields. Without fields it is
--       `heartbeat_only`, with them `metadata_update`.
-- Gives for each 'ok', 'gone', 'superseded', or the error that its record caused. Where Redis is
-- out of memory, metadata is refused and the sign of life counts.

local channel, tier1, service = ARGV[1], ARGV[2] == '1', ARGV[3]
local heartbeats, persistent = KEYS[1], KEYS[2]
local now = server_time()
local results, beating = {}, {}

-- Metadata first: a write that Redis may refuse, before those that it may not.
local function update(instance, at)
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
  local problem, action = nil, nil
  if last > at + 5 then
    problem = write(instance, at + 6, last, false)
    if not problem then
      redis.call('HSET', instance, 'lastMetadataUpdate', text(now))
      action = action_for(true, held[3], healthy)
    end
  elseif held[3] ~= healthy then
    action = action_for(true, held[3], healthy)
  end
  beating[#beating + 1] = {instance, id, held[4], healthy, head, action}
  return problem or 'ok'
end

local at = 4
for i = tier1 and 4 or 3, #KEYS do
  results[#results + 1] = update(KEYS[i], at)
  at = at + 6 + tonumber(ARGV[at + 5])
end

make_way(persistent)
for _, one in ipairs(beating) do
  local instance, id, ephemeral, healthy, head, action = unpack(one, 1, 6)
  local moment = beat(heartbeats, persistent, instance, id, ephemeral, now)
  if action then
    redis.call('HSET', instance, 'healthy', healthy)
    tell(channel, head, action, moment)
  end
end
-- Where tier 1 is something else, those who read it are told: the beats have been given.
if tier1 and #beating > 0 then redis.pcall('SADD', KEYS[3], service) end
return results
