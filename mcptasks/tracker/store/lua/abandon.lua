-- An intent without a handle comes to its end: its call was refused, or what it had started was cancelled.
--
-- KEYS: task
-- ARGV: task_id, status, reason, message
-- RETURNS: ABANDONED | IGNORED

local r = redis.call('HMGET', task, 'status', 'handled')
if r[2] or not (r[1] == 'intended' or r[1] == 'unknown') then return {'IGNORED'} end
settle(task, task_id, status, reason, message)
return {'ABANDONED'}
