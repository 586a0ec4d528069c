-- What must be known of a service beside its instances.
--
-- KEYS  1 config, 2 brake
-- Gives {now, the operator's words (ids and values in turn), the brake (names and values in turn)}.

return {
  text(server_time()),
  redis.call('HGETALL', KEYS[1]),
  redis.call('HGETALL', KEYS[2]),
}
