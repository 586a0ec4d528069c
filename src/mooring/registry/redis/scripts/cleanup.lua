-- Take out those of some instances that gave no sign of life for too long, unless so many are
-- silent at once that the fault is likely elsewhere: then the brake holds.
--
-- KEYS  1 heartbeats, 2 brake, 3 evictions, 4 unhealthy, 5 services (only where ARGV[2] is 1),
--       then the hash of each instance to look at
-- ARGV  1 channel, 2 whether tier 1 is at hand (1 or 0), 3 name of the service
--       4 timeout, 5 interval, 6 ms after which the brake releases by itself
--       7 share and 8 least number of instances beyond which it holds
--       then for each instance: id, head of the message
-- Gives {now, brake, silent, total, then {outcome, id} for each that was changed}; the brake is
-- 'open', 'tripped' (just now), 'holding', 'recovered', 'timed out' or 'released'; outcomes are
-- 'removed', 'unhealthy', 'orphan' and 'error …'.

local channel, tier1, service = ARGV[1], ARGV[2] == '1', ARGV[3]
local timeout, interval, hold = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local share, least = tonumber(ARGV[7]), tonumber(ARGV[8])
local heartbeats, brake, evictions, unhealthy = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local now = server_time()
local marked = redis.call('SCARD', unhealthy)
local evicted = tonumber(redis.call('GET', evictions) or 0)
local total = redis.call('ZCARD', heartbeats) - marked + evicted
local soon = text(now - timeout + interval)
local silent = redis.call('ZCOUNT', heartbeats, '-inf', '(' .. soon) - marked + evicted
local dead = redis.call('ZCOUNT', heartbeats, '-inf', '(' .. text(now - timeout)) - marked
local many = silent > evicted and silent >= least and silent > share * total

local said = redis.call('HMGET', brake, 'state', 'until')
local state = 'open'
if said[1] == 'holding' then
  if now >= tonumber(said[2] or 0) then
    redis.call('HSET', brake, 'state', 'released', 'by', 'time')
    redis.call('PEXPIRE', brake, 2 * interval + timeout)
    state = 'timed out'
  elseif many then
    state = 'holding'
  else
    redis.call('DEL', brake)
    state = 'recovered'
  end
elseif said[1] == 'released' then
  if dead <= 0 then redis.call('DEL', brake) end
  state = 'released'
elseif many then
  redis.call('HSET', brake, 'state', 'holding', 'since', text(now), 'until', text(now + hold),
    'silent', silent, 'total', total)
  state = 'tripped'
end

local result = {text(now), state, silent, total}
local function changed(outcome, id) result[#result + 1] = {outcome, id} end

local function look(instance, id, head)
  local score = redis.call('ZSCORE', heartbeats, id)
  local ephemeral = redis.pcall('HGET', instance, 'ephemeral')
  if type(ephemeral) == 'table' and ephemeral.err then return changed('error ' .. ephemeral.err, id) end
  if not score then
    if redis.call('DEL', instance) == 1 then changed('orphan', id) end
    return
  end
  if redis.call('EXISTS', instance) == 0 then
    redis.call('ZREM', heartbeats, id)
    redis.call('SREM', unhealthy, id)
    tell(channel, head, 'removed', now)
    return changed('orphan', id)
  end
  if state == 'holding' or state == 'tripped' or tonumber(score) >= now - timeout then return end
  if ephemeral == 'false' then
    if redis.call('SADD', unhealthy, id) == 1 then
      redis.call('HSET', instance, 'healthy', 'false')
      tell(channel, head, 'health_failure', now)
      changed('unhealthy', id)
    end
    return
  end
  redis.call('ZREM', heartbeats, id)
  redis.call('DEL', instance)
  if (state == 'open' or state == 'recovered') and redis.call('INCR', evictions) == 1 then
    redis.call('PEXPIRE', evictions, interval)
  end
  tell(channel, head, 'removed', now)
  changed('removed', id)
end

local first, at = tier1 and 6 or 5, 9
for i = first, #KEYS do
  look(KEYS[i], ARGV[at], ARGV[at + 1])
  at = at + 2
end
if redis.call('EXISTS', heartbeats) == 0 then
  redis.call('DEL', unhealthy, brake)
  if tier1 then redis.call('SREM', KEYS[5], service) end
end
return result
