-- The task is due at once: its server said that it has changed.
--
-- KEYS: task, due
-- ARGV: task_id
-- RETURNS: NUDGED | IGNORED

local status = redis.call('HGET', task, 'status')
if not status or TERMINAL[status] or status == 'intended' or status == 'unknown' then return {'IGNORED'} end
wanted_now(task, due, task_id)
return {'NUDGED'}
