-- The claim is given back, as if it had not been; the task is due again after a while.
--
-- KEYS: task, due
-- ARGV: task_id, token, delay_ms
-- RETURNS: RELEASED | STALE | TERMINAL | GONE

local r = redis.call('HMGET', task, 'status', 'token', 'again', 'lease')
if not r[1] then return {'GONE'} end
if TERMINAL[r[1]] then return {'TERMINAL'} end
-- As in `observe`: given back already.
if r[2] ~= token or not r[4] then return {'STALE'} end
redis.call('HDEL', task, 'lease', 'again')
keep_alive(task, task_id)
index_add(due, r[3] and now or now + tonumber(delay_ms), task_id, redis.call('HGET', task, 'gone'))
return {'RELEASED'}
