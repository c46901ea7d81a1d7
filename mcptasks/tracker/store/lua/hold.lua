-- Who delivers the event goes on doing so for another lease.
--
-- KEYS: task, outbox
-- ARGV: task_id, consumer, token, lease_ms
-- RETURNS: HELD | STALE

if redis.call('HGET', task, 'n:' .. consumer) ~= token then return {'STALE'} end
redis.call('HSET', task, 'l:' .. consumer, int(now + tonumber(lease_ms)))
index_add(outbox, now + tonumber(lease_ms), task_id, redis.call('HGET', task, 'gone'))
return {'HELD'}
