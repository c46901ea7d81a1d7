-- The hold is over: the worker has let go of the task, unless the answers came first.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, token, budget, delays...
-- RETURNS: PARKED countdown_ms look run tool queue hard_limit | ANSWERED | CANCELLED
--   | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
if redis.call('HGET', task, 'status') == 'running' then return {'ANSWERED'} end
if cancelled_by_now(k, task_id) then return {'CANCELLED'} end
local countdown, look = let_go(k, task_id, budget, delays)
return {'PARKED', countdown, look, next_run(task)}
