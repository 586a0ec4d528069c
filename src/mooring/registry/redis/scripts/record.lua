-- What the scripts share; put before each of them when it is loaded.

-- The server's time in ms. No clock but this one counts.
local function server_time()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function text(number)
  return string.format('%.0f', number)
end

-- Whether the record of an incarnation was made after that of another: the later one counts.
local function is_later(registered, incarnation, than, than_incarnation)
  local a, b = tonumber(registered) or 0, tonumber(than) or 0
  if a ~= b then return a > b end
  return incarnation > than_incarnation
end

-- Let what follows be written though Redis is out of memory: it refuses the first write of a script
-- only, if that could take room. For signs of life, which take none, and for what gives some back.
local function make_way(sorted_set)
  redis.call('ZREM', sorted_set, '')
end

-- A heartbeat: scores never move backwards, also where a new master's clock is behind. Instances
-- that stay when they are silent stand in a sorted set of their own as well.
local function beat(heartbeats, persistent, instance, id, ephemeral, now)
  local score = tonumber(redis.call('ZSCORE', heartbeats, id) or 0)
  if score > now then now = score end
  redis.call('HSET', instance, 'heartbeat', text(now))
  redis.call('ZADD', heartbeats, text(now), id)
  if ephemeral == 'false' then redis.call('ZADD', persistent, text(now), id) end
  return now
end

-- Write ARGV[first..last] (names and values in turn) into a hash. Flattened metadata that is not
-- among them goes; with `whole`, so does every other field. Gives an error, if there is one, from
-- before anything was written.
local function write(instance, first, last, whole)
  local keep = {}
  for i = first, last, 2 do keep[ARGV[i]] = true end
  local held = redis.call('HKEYS', instance)
  for i = first, last, 128 do
    local done = redis.pcall('HSET', instance, unpack(ARGV, i, math.min(i + 127, last)))
    if type(done) == 'table' and done.err then return done.err end
  end
  for _, name in ipairs(held) do
    if not keep[name] and (whole or string.sub(name, 1, 9) == 'metadata_') then
      redis.call('HDEL', instance, name)
    end
  end
end

-- Tell those who listen. `head` is the JSON of the message without its end.
local function tell(channel, head, action, now)
  redis.call('PUBLISH', channel, head .. ',"action":"' .. action .. '","timestamp":' .. text(now) .. '}')
end

-- What a change is called, given whether the instance was there and healthy, and whether it is.
local function action_for(there, was_healthy, healthy)
  if not there then return 'added' end
  if was_healthy == healthy then return 'updated' end
  if healthy == 'true' then return 'health_recovery' end
  return 'health_failure'
end
