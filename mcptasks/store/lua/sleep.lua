-- The timers run. Held: the run keeps its worker. Otherwise the worker has let go of the task until the first is due.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, token, hold, resend_ms, countdown_max_ms, budget, delay_count, tail...
-- RETURNS: SET | SLEEPING countdown_ms run tool queue hard_limit | PARKED countdown_ms look run tool queue hard_limit
--   | DUE | CANCELLED | STALE | TERMINAL | GONE
--
-- tail: the countdown delays, then quadruples of a timer's name, delay_ms or until_ms (the other one is empty), place

local no = refused(task, token)
if no then return {no} end
if hold ~= '1' and cancelled_by_now(k, task_id) then return {'CANCELLED'} end
local delays, timers = {}, {}
for i, value in ipairs(tail) do
  if i <= tonumber(delay_count) then delays[#delays + 1] = value else timers[#timers + 1] = value end
end

local first
for i = 1, #timers, 4 do
  local field, delay_ms, until_ms, place = 't:' .. timers[i], timers[i + 1], timers[i + 2], timers[i + 3]
  -- The first moment stands: a later run only comes to the same timer again.
  local known = redis.call('HGET', journal, field)
  local due = known and tonumber(string.match(known, '^%S+')) or tonumber(until_ms) or now + tonumber(delay_ms)
  if not known then redis.call('HSET', journal, field, int(due) .. ' ' .. place) end
  first = math.min(first or due, due)
end
expire_with_task(task, journal)
touch(task, false)
if hold ~= '1' and first <= now then return {'DUE'} end
note(task, 'sleep', int(first))
redis.call('HSET', task, 'wake', int(first))
if hold == '1' then return {'SET'} end

local r = redis.call('HMGET', task, 'open', 'gone')
if r[1] ~= '0' then
  -- Questions of an earlier run are still open. So it waits for a person too, whoever comes first.
  redis.call('HSET', task, 'status', 'parked')
  local countdown, look = let_go(k, task_id, budget, delays)
  return {'PARKED', countdown, look, next_run(task)}
end
redis.call('HSET', task, 'status', 'sleeping', 'resume', '1', 'resends', '0')
redis.call('HDEL', task, 'deferrals')
if unhand(task) then touch(task, true) end
redis.call('ZREM', leases, task_id)
local countdown = put_off(k, task_id, first - now, countdown_max_ms, budget, resend_ms, r[2])
return {'SLEEPING', int(countdown), next_run(task)}
