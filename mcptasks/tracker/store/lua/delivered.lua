-- The consumer has handled the news up to that revision. What happened since is due at once.
--
-- KEYS: task, outbox
-- ARGV: task_id, consumer, token, revision
-- RETURNS: DELIVERED | REPLACED | STALE

local r = redis.call('HMGET', task, 'n:' .. consumer, 'e:' .. consumer, 'gone')
if r[1] ~= token or not r[2] then return {'STALE'} end
redis.call('HDEL', task, 'l:' .. consumer)
if tonumber(string.match(r[2], '^%d+')) > tonumber(revision) then
  index_add(outbox, now, task_id, r[3])
  return {'REPLACED'}
end
redis.call('HDEL', task, 'e:' .. consumer, 't:' .. consumer)
redis.call('ZREM', outbox, task_id)
return {'DELIVERED'}
