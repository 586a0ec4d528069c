-- Delete the parts of a v1 key that have not changed since they were read.
--
-- KEYS  1 the key
-- ARGV  1 'hash', then the names and values of all its fields: it is deleted as a whole
--         'set', then members
--         'zset', then members and scores, alternating
-- Returns {the number of deleted parts, then the changed members (for a hash: its key)}. Parts that
-- no longer exist count as neither.

local key, kind = KEYS[1], ARGV[1]

local function same()
  if redis.call('HLEN', key) ~= (#ARGV - 1) / 2 then return false end
  for i = 2, #ARGV, 2 do
    if redis.call('HGET', key, ARGV[i]) ~= ARGV[i + 1] then return false end
  end
  return true
end

local result = {0}
if kind == 'hash' then
  if redis.call('EXISTS', key) == 0 then return result end
  if not same() then return {0, key} end
  return {redis.call('DEL', key)}
end
if kind == 'set' then
  for i = 2, #ARGV do result[1] = result[1] + redis.call('SREM', key, ARGV[i]) end
  return result
end
for i = 2, #ARGV, 2 do
  local score = redis.call('ZSCORE', key, ARGV[i])
  if score and tonumber(score) == tonumber(ARGV[i + 1]) then
    result[1] = result[1] + redis.call('ZREM', key, ARGV[i])
  elseif score then
    result[#result + 1] = ARGV[i]
  end
end
return result
