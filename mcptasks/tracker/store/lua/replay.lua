-- The dead letter is in the outbox again, with all its attempts before it.
--
-- KEYS: task, outbox, dead
-- ARGV: task_id, consumer
-- RETURNS: REPLAYED | NONE

if redis.call('ZREM', dead, task_id .. ' ' .. consumer) == 0 then return {'NONE'} end
local gone = redis.call('HGET', task, 'gone')
if not gone then return {'NONE'} end
redis.call('HSET', task, 't:' .. consumer, '0')
redis.call('HDEL', task, 'x:' .. consumer)
index_add(outbox, now, task_id, gone)
return {'REPLAYED'}
