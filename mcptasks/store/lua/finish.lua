-- The task has ended with this outcome, if the run still holds its token.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, token, status, reason, message, payload
-- RETURNS: FINISHED | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
settle(k, task_id, status, reason, message, payload)
return {'FINISHED'}
