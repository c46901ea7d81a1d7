-- The task waits for a worker that can run it, which this one cannot; or it has failed with this error, because none came.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, token, waiting, said, message, error, delays...
-- RETURNS: DEFERRED delay_ms | EXHAUSTED | COLD | CANCELLED | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
if cancelled_by_now(k, task_id) then return {'CANCELLED'} end
-- It waits for a person: its open questions stay answerable, and the last answer queues it.
if cold_if_held(k, task_id) then return {'COLD'} end

local r = redis.call('HMGET', task, 'deferrals', 'gone')
local nth = tonumber(r[1] or '0') + 1
local delay = delays[nth]
if not delay then
  settle(k, task_id, 'failed', 'failed', message, error)
  return {'EXHAUSTED'}
end
redis.call('HSET', task, 'deferrals', int(nth))
note(task, 'defer', int(nth), delay, said)
retry_at(k, task_id, now + tonumber(delay), waiting)
index_add(unsent, now + tonumber(delay), task_id, r[2])
return {'DEFERRED', delay}
