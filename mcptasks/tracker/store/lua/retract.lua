-- An intent that surely was not sent is as if it had never been: its caller comes again with the same key.
--
-- KEYS: task, due
-- ARGV: task_id
-- RETURNS: RETRACTED | IGNORED

local r = redis.call('HMGET', task, 'status', 'token', 'handled')
-- One that the fleet has had in hand may have been sent by it.
if r[1] ~= 'intended' or r[2] ~= '0' or r[3] then return {'IGNORED'} end
redis.call('DEL', task)
redis.call('ZREM', due, task_id)
forget_task(prefix_of(task, task_id), task_id)
return {'RETRACTED'}
