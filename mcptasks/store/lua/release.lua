-- The run gives its claim back unfinished; another worker continues, and it does not count as an attempt.
--
-- KEYS: task, call, journal, unsent, leases, expiry, countdowns
-- ARGV: task_id, token, resend_ms
-- RETURNS: RELEASED run tool queue hard_limit | COLD | CANCELLED | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
local k = {task = task, call = call, journal = journal, unsent = unsent, leases = leases, expiry = expiry,
  countdowns = countdowns}
if cancelled_by_now(k, task_id) then return {'CANCELLED'} end
if redis.call('HGET', task, 'held') == '1' then
  -- It waits for a person: the client goes on seeing its questions, and the last answer queues it.
  go_cold(k, task_id)
  touch(task, false)
  return {'COLD'}
end
enqueue(k, task_id, resend_ms)
redis.call('HSET', task, 'resume', '1')
touch(task, false)
return {'RELEASED', next_run(task)}
