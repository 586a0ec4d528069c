-- The state of a service, without its instances.
--
-- KEYS  1 config, 2 brake, 3 evictions
-- Returns {now, operator overrides (alternating ids and values), the brake (alternating names and
-- values)}.
--
-- A Redis that rejects writes receives no heartbeats: a replica without its master, a master with
-- too few replicas, or one that cannot save. Then no instance is overdue by its own fault, and the
-- script reports that the brake is engaged.

-- INFO does not report how many replicas are required, nor whether a failed save stops writes.
-- GETEX without options only reads, but Redis rejects it if it rejects writes. For a user without
-- permission for both, the answer is no.
local function rejects_writes()
  local info = redis.pcall('INFO', 'replication')
  if type(info) == 'string' and (string.find(info, 'master_link_status:down', 1, true)
      or string.find(info, 'min_slaves_good_slaves:0', 1, true)) then
    return true
  end
  local tried = redis.pcall('GETEX', KEYS[3])
  return type(tried) == 'table' and tried.err
    and (string.find(tried.err, 'NOREPLICAS', 1, true) or string.find(tried.err, 'MISCONF', 1, true))
end

return {
  text(server_time()),
  redis.call('HGETALL', KEYS[1]),
  rejects_writes() and {'state', 'holding'} or redis.call('HGETALL', KEYS[2]),
}
