-- The questions are open and answerable. Held: the run keeps its worker. Otherwise the worker has let go of the task.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, token, hold, mrtr, trace, budget, questions_max, delay_count, tail...
-- RETURNS: HELD | PARKED countdown_ms look run tool queue hard_limit | ANSWERED | MISMATCH key | TOO_MANY count
--   | CANCELLED | STALE | TERMINAL | GONE
--
-- tail: the countdown delays, then fives of key, method, note, question (JSON), limit; a note's first word is the
-- question's digest; a limit is empty, or the ms that the question may stay open and what happens then: `cancel`, or
-- `fail`, the error (JSON) and, on a line of its own, the message

local no = refused(task, token)
if no then return {no} end
local delays, asked = {}, {}
for i, value in ipairs(tail) do
  if i <= tonumber(delay_count) then delays[#delays + 1] = value else asked[#asked + 1] = value end
end

-- Everything is checked before anything is written.
local fresh, open = {}, tonumber(redis.call('HGET', task, 'open'))
for i = 1, #asked, 5 do
  local key, digest = asked[i], string.match(asked[i + 2], '^%S+')
  local known = redis.call('HGET', journal, 'k:' .. key)
  if known and string.match(known, '^%S+') ~= digest then return {'MISMATCH', key} end
  if not known then fresh[#fresh + 1] = i end
end
open = open + #fresh
if open > tonumber(questions_max) then return {'TOO_MANY', int(open)} end
if open > 0 and hold ~= '1' and cancelled_by_now(k, task_id) then return {'CANCELLED'} end

if mrtr ~= '' then redis.call('HSET', journal, 'mrtr', mrtr) end
if trace ~= '' then redis.call('HSET', journal, 'trace', trace) end
local news = {}
for _, i in ipairs(fresh) do
  redis.call('HSET', journal, 'k:' .. asked[i], asked[i + 2])
  redis.call('HSET', task, 'q:' .. asked[i], asked[i + 3])
  news[#news + 1] = asked[i + 1] .. '=' .. asked[i]
  -- The first moment stands, as for a timer: a later run only comes to the same question again.
  local limit_ms, what = string.match(asked[i + 4], '^(%d+) (.*)$')
  if limit_ms then
    local due = now + tonumber(limit_ms)
    redis.call('HSET', task, 'd:' .. asked[i], int(due) .. ' ' .. what)
    watch_until(k, task_id, due)
  end
end
expire_with_task(task, journal)
if open == 0 then
  redis.call('HDEL', task, 'wake')
  return {'ANSWERED'}
end

if news[1] then note(task, 'ask', unpack(news)) end
redis.call('HSET', task, 'status', 'parked', 'open', int(open))
touch(task, true)
if hold == '1' then
  redis.call('HSET', task, 'held', '1')
  return {'HELD'}
end
local countdown, look = let_go(k, task_id, budget, delays)
return {'PARKED', countdown, look, next_run(task)}
