-- What a poll came to stands in the record, and when the next one is due, if the claim still holds.
--
-- KEYS: task, due
-- ARGV: task_id, token, learned, cancel, error_text, next_ms, pace_ms, status, reason, message, result, failure,
--   truncated, answered, refused, rest...
-- RETURNS: OBSERVED | ENDED | STALE | TERMINAL | GONE
--
-- learned: '1' when the server said where its task is. cancel: 'sent' or 'refused' where a cancel was delivered.
-- answered, refused: how many keys of delivered answers rest begins with, and of answers that the server did not take;
-- behind them the questions shown, key and question

local r = redis.call('HMGET', task, 'status', 'token', 'failures', 'lease')
if not r[1] then return {'GONE'} end
if TERMINAL[r[1]] then return {'TERMINAL'} end
-- Without a lease the claim was given back: this is our own client, sending once more what it saw no answer to.
if r[2] ~= token or not r[4] then return {'STALE'} end
redis.call('HINCRBY', task, 'polls', 1)
if cancel ~= '' then redis.call('HSET', task, 'cancel', cancel) end
local delivered = tonumber(answered)
for i = 1, delivered do redis.call('HDEL', task, 'q:' .. rest[i], 'a:' .. rest[i]) end
local first_shown = delivered + tonumber(refused) + 1
local reopened = false
for i = delivered + 1, first_shown - 1 do
  if redis.call('HDEL', task, 'a:' .. rest[i]) == 1 and redis.call('HEXISTS', task, 'q:' .. rest[i]) == 1 then
    reopened = true
  end
end
if error_text == '' then
  redis.call('HSET', task, 'failures', '0')
  redis.call('HDEL', task, 'error_text')
else
  redis.call('HINCRBY', task, 'failures', 1)
  redis.call('HSET', task, 'error_text', error_text)
end
if learned == '1' then
  redis.call('HSET', task, 'pace', pace_ms)
  local o = {status = status, reason = reason, message = message, result = result, failure = failure,
    truncated = truncated, shown = {unpack(rest, first_shown)}}
  if take_state(task, task_id, o) then return {'ENDED'} end
elseif delivered > 0 or (r[3] ~= '0') ~= (error_text ~= '') then
  touch(task)
end
if reopened and is_asking(task) then
  redis.call('HSET', task, 'status', 'input_required')
  announce(task, task_id, 'input_required')
end
local wanted = redis.call('HGET', task, 'again')
redis.call('HDEL', task, 'lease', 'again')
keep_alive(task, task_id)
index_add(due, wanted and now or now + tonumber(next_ms), task_id, redis.call('HGET', task, 'gone'))
return {'OBSERVED'}
