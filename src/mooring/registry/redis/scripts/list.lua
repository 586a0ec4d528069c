-- The details of instances, many in one call.
--
-- KEYS  the hash of each instance
-- ARGV  the names of the fields that are wanted; the last but one is there in every record of
--       ours, and with the last it is most of it: a record without it is somebody else's, and
--       comes with all that it has.
-- Gives for each {0, values…}, {1, names and values in turn…}, an error, or nothing where it is gone;
-- of no more than the first ones where they are large, so that nobody waits long.

local results, room = {}, 1000000
for i, key in ipairs(KEYS) do
  local held = redis.pcall('HMGET', key, unpack(ARGV))
  if held.err then
    results[i] = held.err
  elseif held[#ARGV - 1] then
    room = room - #held[#ARGV - 1] - #(held[#ARGV] or '')
    table.insert(held, 1, 0)
    results[i] = held
  else
    held = redis.call('HGETALL', key)
    for _, part in ipairs(held) do room = room - #part end
    table.insert(held, 1, 1)
    results[i] = #held > 1 and held
  end
  if room < 0 then break end
end
return results
