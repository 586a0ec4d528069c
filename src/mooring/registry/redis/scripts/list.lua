-- The fields of many instances in one call.
--
-- KEYS  the hash of each instance
-- ARGV  the names of the fields. All our records have the last but one, which with the last is
--       most of the record. A record without it was written by another program, and all of its
--       fields are returned.
-- Returns for each {0, values…}, {1, alternating names and values…}, an error, or nil if it does
-- not exist; for large records, only the first ones, so that the call does not block Redis.

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
