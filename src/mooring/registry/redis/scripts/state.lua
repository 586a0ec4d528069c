-- What must be known of a service beside its instances.
--
-- KEYS  1 config, 2 brake
-- Gives {now, the operator's words (ids and values in turn), the brake (names and values in turn)}.
--
-- A Redis that takes no writes hears no heartbeat: a replica without its master, or a master with
-- too few replicas. Nobody is overdue by their own doing then, and it says that the brake holds.

local function hears_nobody()
  local told = redis.pcall('INFO', 'replication')
  if type(told) ~= 'string' then return false end  -- it may not be asked
  return string.find(told, 'master_link_status:down', 1, true)
    or string.find(told, 'min_slaves_good_slaves:0', 1, true)
end

return {
  text(server_time()),
  redis.call('HGETALL', KEYS[1]),
  hears_nobody() and {'state', 'holding'} or redis.call('HGETALL', KEYS[2]),
}
