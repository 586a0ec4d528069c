-- The details of instances, many in one call.
--
-- KEYS  the hash of each instance
-- ARGV  the names of the fields that are wanted; the last but one is there in every record of
--       ours: a record without it is somebody else's, and comes with all that it has.
-- Gives for each {0, values…}, {1, names and values in turn…}, an error, or nothing where it is gone.

local results = {}
for i, key in ipairs(KEYS) do
  local held = redis.pcall('HMGET', key, unpack(ARGV))
  if held.err then
    results[i] = held.err
  elseif held[#ARGV - 1] then
    table.insert(held, 1, 0)
    results[i] = held
  else
    held = redis.call('HGETALL', key)
    table.insert(held, 1, 1)
    results[i] = #held > 1 and held
  end
end
return results
