-- The task's folder stands in the index of those that are to be removed, before there is a file in it.
--
-- KEYS: task, artifacts
-- ARGV: task_id, token
-- RETURNS: RESERVED | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
redis.call('HSET', task, 'artifacts', artifacts)
keep_files(artifacts, task_id, redis.call('HGET', task, 'gone'))
return {'RESERVED'}
