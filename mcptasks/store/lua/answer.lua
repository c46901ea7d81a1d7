-- The answers are stored, each under a key that was still open; with the last one the task moves on by itself.
--
-- KEYS: task, journal, unsent, leases, countdowns, broker_queue
-- ARGV: task_id, owner, resend_ms, wakes, message, answers...
-- RETURNS: QUEUED run tool queue hard_limit | WOKEN | PARTIAL open | IGNORED | GONE

local r = redis.call('HMGET', task, 'owner', 'status', 'open', 'held')
if not r[1] or r[1] ~= owner then return {'GONE'} end
if TERMINAL[r[2]] then return {'IGNORED'} end
local open = tonumber(r[3])
local before = open
for i = 1, #answers, 2 do
  -- The first valid answer wins; a key that is not open (unknown, answered) is passed over.
  if redis.call('HDEL', task, 'q:' .. answers[i]) == 1 then
    redis.call('HSET', journal, 'a:' .. answers[i], answers[i + 1])
    open = open - 1
  end
end
if open == before then return {'IGNORED'} end
expire_with_task(task, journal)
redis.call('HSET', task, 'open', int(open))
touch(task, true)
if open > 0 then return {'PARTIAL', int(open)} end
if r[4] == '1' then
  -- The run still has its worker: it goes on where it stands.
  redis.call('HSET', task, 'status', 'running')
  redis.call('HDEL', task, 'held')
  redis.call('PUBLISH', wakes, 'answer ' .. task_id)
  return {'WOKEN'}
end
-- One of its timers has set it going, or it is to be tried again: the run that has it, or will, finds the answers.
if r[2] ~= 'parked' then return {'WOKEN'} end
enqueue(k, task_id, resend_ms)
-- The message was made for the run that the caller saw coming; if that was wrong, it is stale and the sweeper sends one.
if message ~= '' then redis.call('LPUSH', broker_queue, message) end
return {'QUEUED', next_run(task)}
