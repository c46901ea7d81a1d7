-- The task waits for its next retry, or has failed with this error because none is left.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, token, message, said, error, resend_ms, countdown_max_ms, budget
-- RETURNS: RETRYING countdown_ms run tool queue hard_limit | EXHAUSTED | COLD | CANCELLED | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
if cancelled_by_now(k, task_id) then return {'CANCELLED'} end
-- It waits for a person: its open questions stay answerable, and the last answer queues it.
if cold_if_held(k, task_id) then return {'COLD'} end

local r = redis.call('HMGET', task, 'retry', 'retries', 'gone')
local delays = {}
for delay in string.gmatch(r[1], '%d+') do delays[#delays + 1] = tonumber(delay) end
local nth = tonumber(r[2]) + 1
local delay = delays[nth]
if not delay then
  settle(k, task_id, 'failed', 'retries_exhausted', message, error)
  return {'EXHAUSTED'}
end

redis.call('HSET', task, 'retries', int(nth))
note(task, 'retry', int(nth), int(delay), said)
retry_at(k, task_id, now + delay, message)

local countdown = put_off(k, task_id, delay, countdown_max_ms, budget, resend_ms, r[3])
return {'RETRYING', int(countdown), next_run(task)}
