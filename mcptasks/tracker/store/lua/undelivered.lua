-- The consumer has not handled the event: it is tried again later, or it is a dead letter. A newer event goes first.
--
-- KEYS: task, outbox, dead
-- ARGV: task_id, consumer, token, revision, delay_ms, attempts_max, permanent, why
-- RETURNS: WAITING | DEAD | REPLACED | STALE

local r = redis.call('HMGET', task, 'n:' .. consumer, 'e:' .. consumer, 't:' .. consumer, 'gone', 'l:' .. consumer)
-- Without a lease it was told already: our own client, once more. The attempt counts once.
if r[1] ~= token or not r[2] or not r[5] then return {'STALE'} end
redis.call('HDEL', task, 'l:' .. consumer)
if string.match(r[2], '^%d+') ~= revision then
  index_add(outbox, now, task_id, r[4])
  return {'REPLACED'}
end
local attempts = tonumber(r[3] or '0') + 1
redis.call('HSET', task, 't:' .. consumer, int(attempts), 'x:' .. consumer, why)
if permanent == '1' or attempts >= tonumber(attempts_max) then
  redis.call('ZREM', outbox, task_id)
  index_add(dead, now, task_id .. ' ' .. consumer, r[4])
  return {'DEAD'}
end
index_add(outbox, now + tonumber(delay_ms), task_id, r[4])
return {'WAITING'}
