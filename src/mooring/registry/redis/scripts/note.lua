-- Leave a note for later leaders, unless another candidate leads.
--
-- KEYS  1 leader  2 note
-- ARGV  1 id of the candidate  2 the note  3 seconds for which it is kept
-- Returns whether the note was written.

local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2], 'EX', ARGV[3])
return 1
