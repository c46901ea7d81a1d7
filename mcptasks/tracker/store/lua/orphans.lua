-- Of some tasks that belong to a durable task, those whose durable task has not lived on are to be cancelled.
--
-- KEYS: parents, due
-- ARGV: task_prefix, after_ms, batch
-- RETURNS: CHECKED cancelled
--
-- task_prefix: of the durable tasks' records. Each task is looked at again after so long

local prefix = without(parents, 'parents')
local cancelled = 0
for _, task_id in ipairs(redis.call('ZRANGE', parents, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, batch)) do
  local task = prefix .. 'task:{' .. task_id .. '}'
  local r = redis.call('HMGET', task, 'status', 'parent', 'cancel', 'gone')
  local parent = r[2] and redis.call('HGET', task_prefix .. '{' .. r[2] .. '}', 'status')
  if not r[1] or TERMINAL[r[1]] or parent == 'completed' then
    redis.call('ZREM', parents, task_id)
  elseif not parent or TERMINAL[parent] then
    redis.call('ZREM', parents, task_id)
    if not r[3] then
      redis.call('HSET', task, 'cancel', '1')
      touch(task)
      if r[1] ~= 'intended' and r[1] ~= 'unknown' then wanted_now(task, due, task_id) end
      cancelled = cancelled + 1
    end
  else
    index_add(parents, now + tonumber(after_ms), task_id, r[4])
  end
end
return {'CHECKED', int(cancelled)}
