-- Whether the server took the call is not known, and nobody may send it again: a person has to look.
--
-- KEYS: task, due
-- ARGV: task_id, message
-- RETURNS: DOUBTED | IGNORED

if redis.call('HGET', task, 'status') ~= 'intended' then return {'IGNORED'} end
redis.call('HSET', task, 'status', 'unknown', 'msg', message)
redis.call('HDEL', task, 'args', 'lease', 'again')
redis.call('ZREM', due, task_id)
announce(task, task_id, 'unknown')
return {'DOUBTED'}
