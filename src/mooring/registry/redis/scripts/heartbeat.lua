-- Signs of life of any number of instances of one service. It never makes a record: of one that is
-- gone, or half gone, it says so, and the instance registers again.
--
-- KEYS  1 heartbeats, 2 persistent, 3 services (only where ARGV[2] is 1), then each instance's hash
-- ARGV  1 channel, 2 whether tier 1 is at hand (1 or 0), 3 name of the service
--       then for each instance: id, incarnation, when it registered, healthy ('': as it is), how
--       many of the following belong to it. With none it is `heartbeat_only`; with some it is
--       `metadata_update`: head of the message, names and values of fields.
-- Gives for each 'ok', 'gone', 'superseded', or the error that its record caused. Where Redis is
-- out of memory, metadata is refused and the sign of life counts.

local channel, tier1, service = ARGV[1], ARGV[2] == '1', ARGV[3]
local heartbeats, persistent = KEYS[1], KEYS[2]
local now = server_time()
local stamp = text(now)
local first = tier1 and 4 or 3  -- of the keys of instances

-- Where the arguments of each instance begin, and the last heartbeat of each, all at once: a call
-- from here to Redis is most of what a beat costs.
local starts, ids, at = {}, {}, 4
for i = first, #KEYS do
  starts[#starts + 1], ids[#ids + 1] = at, ARGV[at]
  at = at + 5 + ARGV[at + 4]
end
local scores = redis.call('ZMSCORE', heartbeats, unpack(ids))
local results, beating = {}, {}

-- Metadata first: a write that Redis may refuse, before those that it may not.
local function update(instance, at, score)
  local incarnation, healthy = ARGV[at + 1], ARGV[at + 3]
  local last = at + 4 + ARGV[at + 4]
  local held = redis.pcall(
    'HMGET', instance, 'incarnation', 'registrationTime', 'healthy', 'ephemeral')
  if held.err then return held.err end
  if not score or not held[1] then return 'gone' end
  if held[1] ~= incarnation then
    if is_later(held[2], held[1], ARGV[at + 2], incarnation) then return 'superseded' end
    return 'gone'
  end
  local problem, action = nil, nil
  if last > at + 4 then
    problem = write(instance, at + 6, last, false)
    if not problem then
      redis.call('HSET', instance, 'lastMetadataUpdate', stamp)
      action = action_for(true, held[3], healthy)
    end
  elseif healthy ~= '' and held[3] ~= healthy then
    action = action_for(true, held[3], healthy)
  end
  beating[#beating + 1] = {instance, at, tonumber(score), held[4], action}
  return problem or 'ok'
end

for i = first, #KEYS do
  local n = i - first + 1
  results[n] = update(KEYS[i], starts[n], scores[n])
end

-- The head of a message about one that sent a sign of life alone, as `message_head` makes it.
local function head_of(instance, id, healthy)
  local told = redis.call('HMGET', instance, 'host', 'protocol', 'version', 'zone', 'port', 'weight',
    'enabled', 'metadataJson')
  local function quoted(i) return cjson.encode(told[i] or '') end
  return '{"serviceName":' .. cjson.encode(service) .. ',"instanceId":' .. cjson.encode(id)
    .. ',"instance":{"host":' .. quoted(1) .. ',"port":' .. (told[5] or '0')
    .. ',"protocol":' .. quoted(2) .. ',"version":' .. quoted(3) .. ',"zone":' .. quoted(4)
    .. ',"weight":' .. (told[6] or '1') .. ',"healthy":' .. healthy
    .. ',"enabled":' .. (told[7] or 'true') .. ',"metadata":' .. (told[8] or '{}') .. '}'
end

-- As `beat` does it, for all of them.
make_way(persistent)
local marks = {}
for _, one in ipairs(beating) do
  local instance, at, score, ephemeral, action = one[1], one[2], one[3], one[4], one[5]
  local moment, said = now, stamp
  if score > now then moment, said = score, text(score) end
  redis.call('HSET', instance, 'heartbeat', said)
  if ephemeral == 'false' then redis.call('ZADD', persistent, said, ARGV[at]) end
  marks[#marks + 1] = said
  marks[#marks + 1] = ARGV[at]
  if action then
    redis.call('HSET', instance, 'healthy', ARGV[at + 3])
    local head = ARGV[at + 4] == '0' and head_of(instance, ARGV[at], ARGV[at + 3]) or ARGV[at + 5]
    tell(channel, head, action, moment)
  end
end
if #marks > 0 then redis.call('ZADD', heartbeats, unpack(marks)) end
-- Where tier 1 is something else, those who read it are told: the beats have been given.
if tier1 and #beating > 0 then redis.pcall('SADD', KEYS[3], service) end
return results
