-- What must be known of a service beside its instances.
--
-- KEYS  1 config, 2 brake, 3 evictions
-- Gives {now, the operator's words (ids and values in turn), the brake (names and values in turn)}.
--
-- A Redis that takes no writes hears no heartbeat: a replica without its master, a master with too
-- few replicas, or one that cannot save. Nobody is overdue by their own doing then, and it says that
-- the brake holds.

-- INFO does not say how many replicas are wanted, nor whether a failed save stops writes. GETEX
-- alone reads, and Redis refuses it where it refuses writes. Who may do neither is told no.
local function hears_nobody()
  local told = redis.pcall('INFO', 'replication')
  if type(told) == 'string' and (string.find(told, 'master_link_status:down', 1, true)
      or string.find(told, 'min_slaves_good_slaves:0', 1, true)) then
    return true
  end
  local tried = redis.pcall('GETEX', KEYS[3])
  return type(tried) == 'table' and tried.err
    and (string.find(tried.err, 'NOREPLICAS', 1, true) or string.find(tried.err, 'MISCONF', 1, true))
end

return {
  text(server_time()),
  redis.call('HGETALL', KEYS[1]),
  hears_nobody() and {'state', 'holding'} or redis.call('HGETALL', KEYS[2]),
}
