-- Heartbeats of any number of instances of one service. Never creates a record: if one is missing
-- or incomplete, it reports that, and the instance registers again.
--
-- KEYS  1 heartbeats, 2 persistent, 3 services (only where ARGV[2] is 1), then each instance's hash
-- ARGV  1 channel, 2 whether tier 1 is on this node (1 or 0), 3 name of the service
--       then for each instance: id, incarnation, when it registered, healthy ('': unchanged), and
--       the number of the following arguments that belong to it. Without any it is a
--       `heartbeat_only`; otherwise a `metadata_update`: head of the message, names and values of
--       fields.
-- Returns for each 'ok', 'gone', 'superseded', or the error of its record. If Redis is out of
-- memory, the metadata is rejected and the heartbeat counts.

local channel, tier1, service = ARGV[1], ARGV[2] == '1', ARGV[3]
local heartbeats, persistent = KEYS[1], KEYS[2]
local now = server_time()
local stamp = text(now)
local first = tier1 and 4 or 3  -- of the keys of instances

-- The positions of the arguments of each instance, and all last heartbeats with one call: calls to
-- Redis are most of the cost of a heartbeat.
local starts, ids, at = {}, {}, 4
for i = first, #KEYS do
  starts[#starts + 1], ids[#ids + 1] = at, ARGV[at]
  at = at + 5 + ARGV[at + 4]
end
local scores = redis.call('ZMSCORE', heartbeats, unpack(ids))
local results, beating = {}, {}

-- Metadata first: Redis may reject this write, but not the following ones.
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

-- The head of a message about a heartbeat without data, as `message_head` creates it.
local function head_of(instance, id, healthy)
  local fields = redis.call('HMGET', instance, 'host', 'protocol', 'version', 'zone', 'port', 'weight',
    'enabled', 'metadataJson')
  local function quoted(i) return cjson.encode(fields[i] or '') end
  return '{"serviceName":' .. cjson.encode(service) .. ',"instanceId":' .. cjson.encode(id)
    .. ',"instance":{"host":' .. quoted(1) .. ',"port":' .. (fields[5] or '0')
    .. ',"protocol":' .. quoted(2) .. ',"version":' .. quoted(3) .. ',"zone":' .. quoted(4)
    .. ',"weight":' .. (fields[6] or '1') .. ',"healthy":' .. healthy
    .. ',"enabled":' .. (fields[7] or 'true') .. ',"metadata":' .. (fields[8] or '{}') .. '}'
end

-- As `beat` does, for all instances.
allow_writes(persistent)
local marks = {}
for _, one in ipairs(beating) do
  local instance, at, score, ephemeral, action = one[1], one[2], one[3], one[4], one[5]
  local moment, heartbeat = now, stamp
  if score > now then moment, heartbeat = score, text(score) end
  redis.call('HSET', instance, 'heartbeat', heartbeat)
  if ephemeral == 'false' then redis.call('ZADD', persistent, heartbeat, ARGV[at]) end
  marks[#marks + 1] = heartbeat
  marks[#marks + 1] = ARGV[at]
  if action then
    redis.call('HSET', instance, 'healthy', ARGV[at + 3])
    local head = ARGV[at + 4] == '0' and head_of(instance, ARGV[at], ARGV[at + 3]) or ARGV[at + 5]
    publish(channel, head, action, moment)
  end
end
if #marks > 0 then redis.call('ZADD', heartbeats, unpack(marks)) end
-- If tier 1 has the wrong type, its readers report it: the heartbeats count.
if tier1 and #beating > 0 then redis.pcall('SADD', KEYS[3], service) end
return results
