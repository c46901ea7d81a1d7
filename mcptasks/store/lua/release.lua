-- The run gives its claim back unfinished; another worker continues, and it does not count as an attempt. What must
-- not be begun twice has failed instead.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, token, resend_ms, shutdown_message
-- RETURNS: RELEASED run tool queue hard_limit | FAILED | COLD | CANCELLED | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
if cancelled_by_now(k, task_id) then return {'CANCELLED'} end
-- It waits for a person: its open questions stay answerable, and the last answer queues it.
if cold_if_held(k, task_id) then return {'COLD'} end
if redis.call('HGET', task, 'max_attempts') == '1' then
  local error = '{"code":-32603,"message":"' .. shutdown_message .. '"}'
  settle(k, task_id, 'failed', 'shutdown', shutdown_message, error)
  return {'FAILED'}
end
note(task, 'release')
local seen = enqueue(k, task_id, resend_ms)
redis.call('HSET', task, 'resume', '1')
touch(task, seen)
return {'RELEASED', next_run(task)}
