-- Evict the given instances that are overdue, unless too many are silent at once: the fault is then
-- likely elsewhere, and the brake is engaged.
--
-- KEYS  1 heartbeats, 2 brake, 3 evictions, 4 persistent, 5 services (only where ARGV[2] is 1),
--       then the hash of each instance to check
-- ARGV  1 channel, 2 whether tier 1 is on this node (1 or 0), 3 name of the service
--       4 oldest heartbeat that is not overdue, 5 timeout, 6 interval
--       7 ms after which the brake is released automatically
--       8 share and 9 least number of instances beyond which it engages
--       10 head of a message about the service
--       11 ms between two heartbeats
--       then for each instance: id, head of the message
-- Returns {now, brake, silent, total, then {outcome, id} for each changed instance}. The brake is
-- 'open', 'tripped' (just now), 'holding', 'recovered', 'timed out' or 'released'. Outcomes are
-- 'removed', 'unhealthy', 'orphan', 'lowered' and 'error …'.
--
-- Instances that are never evicted do not count for the brake. The caller read the clock for
-- ARGV[4] before: if this Redis was stopped since then, that makes no instance overdue.

local channel, tier1, service = ARGV[1], ARGV[2] == '1', ARGV[3]
local oldest, timeout, interval = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local hold, share, least = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
local beat = tonumber(ARGV[11])
local heartbeats, brake, evictions, persistent = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local now = server_time()
local evicted = tonumber(redis.call('GET', evictions) or 0)

local function silent_since(moment)
  local before = '(' .. text(moment)
  return redis.call('ZCOUNT', heartbeats, '-inf', before)
    - redis.call('ZCOUNT', persistent, '-inf', before)
end

local total = redis.call('ZCARD', heartbeats) - redis.call('ZCARD', persistent) + evicted
-- Instances that fell silent together have last heartbeats up to one heartbeat interval apart, and
-- the next pass is one cleanup interval away. An instance that is not due yet is not silent.
local window = math.max(interval, timeout / 4)
local ahead = math.min(1.5 * window, timeout / 2, math.max(timeout - 1.5 * beat, 0))
local silent = silent_since(oldest + ahead) + evicted
local many = silent > evicted and silent >= least and silent > share * total

local held = redis.call('HMGET', brake, 'state', 'until', 'fewer')
if tier1 then redis.call('SISMEMBER', KEYS[5], service) end
allow_writes(persistent)

local kept = text(2 * interval + timeout)
local state = 'open'
if held[1] == 'holding' then
  state = 'holding'
  if now >= tonumber(held[2] or 0) then
    redis.call('HSET', brake, 'state', 'released', 'by', 'time')
    redis.call('PEXPIRE', brake, kept)
    state = 'timed out'
  elseif many then
    redis.call('HDEL', brake, 'fewer')
    redis.call('HSET', brake, 'silent', silent, 'total', total)
  elseif silent_since(oldest) <= 0 then
    state = 'recovered'
  elseif not held[3] then
    redis.call('HSET', brake, 'fewer', text(now))  -- give the others time for a heartbeat, too
  elseif now - tonumber(held[3]) >= timeout then
    state = 'recovered'
  end
  if state == 'recovered' then redis.call('DEL', brake) end
elseif held[1] == 'released' then
  if silent <= 0 then redis.call('DEL', brake) end
  state = 'released'
elseif many then
  redis.call('HSET', brake, 'state', 'holding', 'since', text(now), 'until', text(now + hold),
    'silent', silent, 'total', total)
  redis.call('PEXPIRE', brake, text(hold + 2 * interval + timeout))  -- even without another pass
  state = 'tripped'
end
if state == 'tripped' or state == 'recovered' or state == 'timed out' then
  publish(channel, ARGV[10], 'updated', now)
end

local result = {text(now), state, silent, total}
local function changed(outcome, id) result[#result + 1] = {outcome, id} end

local function evict(instance, id, head)
  redis.call('ZREM', heartbeats, id)
  redis.call('ZREM', persistent, id)
  redis.call('DEL', instance)
  publish(channel, head, 'removed', now)
end

local function check(instance, id, head)
  local score = redis.call('ZSCORE', heartbeats, id)
  local record = redis.pcall('HMGET', instance, 'ephemeral', 'healthy')
  if record.err then return changed('error ' .. record.err, id) end
  if not score or redis.call('EXISTS', instance) == 0 then
    if score or redis.call('EXISTS', instance) == 1 then
      evict(instance, id, head)
      changed('orphan', id)
    end
    return
  end
  -- The clock stepped back. New heartbeats never lower one, so this one would count as recent for
  -- as long as the step.
  if tonumber(score) > now + timeout then
    redis.call('ZADD', heartbeats, text(now), id)
    redis.call('ZADD', persistent, 'XX', text(now), id)
    redis.call('HSET', instance, 'heartbeat', text(now))
    return changed('lowered', id)
  end
  if state == 'holding' or state == 'tripped' or tonumber(score) >= oldest then return end
  if record[1] == 'false' then
    if record[2] ~= 'false' then
      redis.call('HSET', instance, 'healthy', 'false')
      publish(channel, head, 'health_failure', now)
      changed('unhealthy', id)
    end
    return
  end
  evict(instance, id, head)
  if (state == 'open' or state == 'recovered') and redis.call('INCR', evictions) == 1 then
    redis.call('PEXPIRE', evictions, text(window))
  end
  changed('removed', id)
end

local at = 12
for i = tier1 and 6 or 5, #KEYS do
  check(KEYS[i], ARGV[at], ARGV[at + 1])
  at = at + 2
end
if redis.call('EXISTS', heartbeats) == 0 then
  redis.call('DEL', persistent, brake)
  if tier1 then redis.call('SREM', KEYS[5], service) end
end
return result
