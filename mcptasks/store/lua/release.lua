-- The run gives its claim back unfinished; another worker continues, and it does not count as an attempt.
--
-- KEYS: task, unsent, leases, countdowns
-- ARGV: task_id, token, resend_ms
-- RETURNS: RELEASED run tool queue hard_limit | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
enqueue({task = task, unsent = unsent, leases = leases, countdowns = countdowns}, task_id, resend_ms)
redis.call('HSET', task, 'resume', '1')
touch(task, false)
return {'RELEASED', next_run(task)}
