-- The server's handle is stored, with what the server said beside it. A handle is a fact, whoever brings it: the first
-- one stays, and any other is for its bringer to cancel. handle '': the server answered at once.
--
-- KEYS: task, due, handles...
-- ARGV: task_id, handle, handled, status, reason, message, next_ms, pace_ms, result, failure, truncated, shown...
-- RETURNS: TRACKED | ENDED | SAME | TAKEN task_id | OTHER | TERMINAL status | GONE
--
-- handles: the key of this server and handle, and behind it all that may have been used for it. handled: its digest

local r = redis.call('HMGET', task, 'status', 'handled', 'gone')
if not r[1] then return {'GONE'} end
if r[2] then
  -- With any of the keys that it may have been written with.
  for _, key in ipairs(handles) do
    if key == prefix_of(task, task_id) .. 'handle:' .. r[2] then return {'SAME'} end
  end
  return {'OTHER'}
end
if handle == '' and TERMINAL[r[1]] then return {'SAME'} end
if handle ~= '' then
  for _, key in ipairs(handles) do
    local other = redis.call('GET', key)
    -- It lives as long as its task; and it is that task's, however this one has ended.
    if other and other ~= task_id then
      if TERMINAL[r[1]] then return {'TAKEN', other} end
      settle(task, task_id, 'failed', 'duplicate', 'The server answered with the handle of a task that is tracked already')
      return {'TAKEN', other}
    end
  end
end
if TERMINAL[r[1]] then return {'TERMINAL', r[1]} end
if handle ~= '' then
  redis.call('HSET', task, 'handle', handle, 'handled', handled)
  redis.call('SET', handles[1], task_id, 'PXAT', r[3])
end
redis.call('HDEL', task, 'args', 'lease', 'error_text')
redis.call('HSET', task, 'failures', '0', 'pace', pace_ms)
-- Whoever recovered the same intent meanwhile has nothing to say any more.
redis.call('HINCRBY', task, 'token', 1)
local o = {status = status, reason = reason, message = message, result = result, failure = failure,
  truncated = truncated, shown = shown}
if take_state(task, task_id, o) then return {'ENDED'} end
redis.call('HDEL', task, 'again')
local soon = redis.call('HGET', task, 'cancel') == '1'
index_add(due, soon and now or now + tonumber(next_ms), task_id, redis.call('HGET', task, 'gone'))
touch(task)
return {'TRACKED'}
