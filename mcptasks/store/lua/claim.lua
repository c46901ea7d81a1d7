-- This worker holds the right to run the task once: a lease, a fencing token, an attempt; or it learns why not.
-- A parked task only says when to look again, unless one of its timers is due: then it runs with its questions open.
--
-- KEYS: task, call, journal, unsent, leases, countdowns
-- ARGV: task_id, run, look, lease_ms, worker, nonce, budget, delays...
-- RETURNS: CLAIMED attempt record call journal | HELD worker | STALE token | TERMINAL status | GONE | NEWER schema
--   | PARKED countdown_ms look run tool queue hard_limit | EARLY status wait_ms run tool queue hard_limit

local r = redis.call('HMGET', task, 'status', 'token', 'v', 'held', 'look', 'worker', 'attempt', 'resume',
  'hard_limit', 'gone', 'due', 'nonce', 'wake')
local status, token, wake = r[1], r[2], r[13]

local function claimed(attempt)
  return {'CLAIMED', attempt, redis.call('HGETALL', task), redis.call('GET', call) or '',
    redis.call('HGETALL', journal)}
end

if not status then
  redis.call('ZREM', unsent, task_id)
  redis.call('ZREM', countdowns, task_id)
  return {'GONE'}
end
if too_new(r[3]) then return {'NEWER', r[3]} end
if TERMINAL[status] then return {'TERMINAL', status} end
if status == 'running' or r[4] == '1' then
  -- This very claim succeeded before, and its answer got lost on the way: it stands, and is answered again.
  if r[12] == nonce then return claimed(r[7]) end
  return {'HELD', r[6] or ''}
end
if tonumber(run) ~= tonumber(token) + 1 then return {'STALE', token} end
if status == 'parked' and not (wake and tonumber(wake) <= now) then
  -- Only the latest re-check goes on: a message delivered twice must not become two chains.
  if look == '0' or look ~= r[5] then return {'STALE', token} end
  local countdown, next_look =
    next_countdown(k, task_id, budget, delays, tonumber(look) + 1)
  return {'PARKED', countdown, next_look, next_run(task)}
end

-- Nothing runs before its time by the store's clock, whatever the clock of the worker that counted it down.
local due = status == 'retrying' and r[11] or status == 'sleeping' and wake
if due and tonumber(due) > now then return {'EARLY', status, int(tonumber(due) - now), next_run(task)} end

local attempt = tonumber(r[7])
if r[8] ~= '1' then attempt = attempt + 1 end
if token ~= '0' or redis.call('EXISTS', timeline_of(task)) == 1 then note(task, 'claim', run, int(attempt), worker) end
redis.call('HSET', task, 'status', 'running', 'token', run, 'attempt', int(attempt), 'worker', worker, 'nonce', nonce,
  'started', int(now), 'deadline', r[9] ~= '' and int(now + tonumber(r[9])) or '')
redis.call('HDEL', task, 'resume', 'wake')
-- Working before and working after: the client sees no difference.
touch(task, false)
redis.call('ZREM', unsent, task_id)
redis.call('ZREM', countdowns, task_id)
index_add(leases, now + tonumber(lease_ms), task_id, r[10])
return claimed(int(attempt))
