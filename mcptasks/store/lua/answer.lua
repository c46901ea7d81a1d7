-- The answers are stored, each under a key that was still open and whose time was not up; with the last one the task
-- moves on by itself.
--
-- KEYS: task, journal, unsent, leases, countdowns, broker_queue
-- ARGV: task_id, owner, operator, resend_ms, wakes, message, answers...
-- RETURNS: QUEUED run tool queue hard_limit | WOKEN | PARTIAL open | IGNORED | GONE | NEWER schema
--
-- operator: the word of the operator who answers, as the timeline has it; '' it is the caller

local r = redis.call('HMGET', task, 'owner', 'status', 'v')
if not r[1] or r[1] ~= owner and operator == '' then return {'GONE'} end
if too_new(r[3]) then return {'NEWER', r[3]} end
if TERMINAL[r[2]] then return {'IGNORED'} end
local timely = {}
for i = 1, #answers, 2 do
  local due = redis.call('HGET', task, 'd:' .. answers[i])
  -- A deadline is one, also where no sweeper came by yet; what happens then was settled with the question, and is reap's.
  if not due or tonumber(string.match(due, '^%d+')) > now then
    timely[#timely + 1], timely[#timely + 2] = answers[i], answers[i + 1]
  end
end
local word, open = take_answers(k, task_id, operator ~= '' and operator or 'client', timely, resend_ms, wakes)
if word ~= 'QUEUED' then return {word, open} end
-- The message was made for the run that the caller saw coming; if that was wrong, it is stale and the caller sends one.
if message ~= '' then redis.call('LPUSH', broker_queue, message) end
return {'QUEUED', next_run(task)}
