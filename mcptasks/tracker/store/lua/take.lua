-- This process is to deliver these events to the consumer, each for a lease.
--
-- KEYS: outbox
-- ARGV: consumer, lease_ms, room
-- RETURNS: TAKEN wait_ms rows
--
-- wait_ms: as of `claim`. rows: token, revision and kind, failed attempts, record

local prefix = without(outbox, 'outbox:' .. consumer)
local rows = {}
for _, task_id in ipairs(redis.call('ZRANGE', outbox, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, room)) do
  local task = prefix .. 'task:{' .. task_id .. '}'
  local r = redis.call('HMGET', task, 'e:' .. consumer, 't:' .. consumer, 'gone', 'v')
  if not r[1] then
    redis.call('ZREM', outbox, task_id)
  elseif too_new(r[4]) then
    index_add(outbox, now + POSTPONED_MS, task_id, r[3])
  else
    local token = redis.call('HINCRBY', task, 'n:' .. consumer, 1)
    redis.call('HSET', task, 'l:' .. consumer, int(now + tonumber(lease_ms)))
    index_add(outbox, now + tonumber(lease_ms), task_id, r[3])
    rows[#rows + 1] = {int(token), r[1], r[2] or '0', redis.call('HGETALL', task)}
  end
end
local first = redis.call('ZRANGE', outbox, 0, 0, 'WITHSCORES')
return {'TAKEN', first[2] and int(math.max(0, tonumber(first[2]) - now)) or '-1', rows}
