-- Functions that the scripts share. They are prepended to each script when it is loaded.

-- The server's time in ms, the only clock that counts.
local function server_time()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function text(number)
  return string.format('%.0f', number)
end

-- Whether an incarnation registered after another one: the later one owns the record.
local function is_later(registered, incarnation, than, than_incarnation)
  local a, b = tonumber(registered) or 0, tonumber(than) or 0
  if a ~= b then return a > b end
  return incarnation > than_incarnation
end

-- Allow the following writes although Redis is out of memory: Redis rejects only the first write of
-- a script, and only if it could take memory. For heartbeats, which take none, and for deletions.
local function allow_writes(sorted_set)
  redis.call('ZREM', sorted_set, '')
end

-- A heartbeat. Scores never decrease, even if the clock of a new master is behind. Instances that
-- are never evicted are also in a sorted set of their own.
local function beat(heartbeats, persistent, instance, id, ephemeral, now)
  local score = tonumber(redis.call('ZSCORE', heartbeats, id) or 0)
  if score > now then now = score end
  redis.call('HSET', instance, 'heartbeat', text(now))
  redis.call('ZADD', heartbeats, text(now), id)
  if ephemeral == 'false' then redis.call('ZADD', persistent, text(now), id) end
  return now
end

-- Write ARGV[first..last] (alternating names and values) into a hash, and delete flattened metadata
-- that is not among them; with `whole`, every other field. Returns an error if there is one, before
-- anything was written.
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

-- Publish a change. `head` is the JSON of the message without its end.
local function publish(channel, head, action, now)
  redis.call('PUBLISH', channel, head .. ',"action":"' .. action .. '","timestamp":' .. text(now) .. '}')
end

-- The action of a change, given whether the instance existed and was healthy, and whether it is.
local function action_for(existed, was_healthy, healthy)
  if not existed then return 'added' end
  if was_healthy == healthy then return 'updated' end
  if healthy == 'true' then return 'health_recovery' end
  return 'health_failure'
end
