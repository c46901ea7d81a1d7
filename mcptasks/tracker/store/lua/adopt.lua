-- The tracked task belongs to a durable task from now on, which follows it: it is cancelled when that one is.
--
-- KEYS: task, parents
-- ARGV: task_id, parent
-- RETURNS: ADOPTED | TERMINAL | GONE

local r = redis.call('HMGET', task, 'status', 'gone')
if not r[1] then return {'GONE'} end
if TERMINAL[r[1]] then return {'TERMINAL'} end
redis.call('HSET', task, 'parent', parent)
index_add(parents, now, task_id, r[2])
return {'ADOPTED'}
