-- This tracker holds the due tasks, each with a lease and a fencing token; and it is alive.
--
-- KEYS: due, trackers
-- ARGV: me, alive_ms, lease_ms, room
-- RETURNS: CLAIMED wait_ms rows
--
-- wait_ms: until the next one is due, -1 when there is none. rows: token, how late it is (ms), record, questions without text

local prefix = without(due, 'due')
redis.call('ZREMRANGEBYSCORE', trackers, '-inf', int(now))
redis.call('ZADD', trackers, int(now + tonumber(alive_ms)), me)
redis.call('PEXPIRE', trackers, alive_ms)
local rows = {}
local found = redis.call('ZRANGE', due, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, room, 'WITHSCORES')
for i = 1, #found, 2 do
  local task_id, late = found[i], now - tonumber(found[i + 1])
  local task = prefix .. 'task:{' .. task_id .. '}'
  local r = redis.call('HMGET', task, 'status', 'v', 'gone')
  if not r[1] then
    redis.call('ZREM', due, task_id)
    forget_tracked(prefix, task_id)
  elseif TERMINAL[r[1]] then
    redis.call('ZREM', due, task_id)
  elseif too_new(r[2]) then
    index_add(due, now + POSTPONED_MS, task_id, r[3])
  else
    local token = redis.call('HINCRBY', task, 'token', 1)
    redis.call('HSET', task, 'lease', int(now + tonumber(lease_ms)))
    redis.call('HDEL', task, 'again')
    redis.call('ZADD', due, int(now + tonumber(lease_ms)), task_id)
    local record, all = {}, redis.call('HGETALL', task)
    for j = 1, #all, 2 do
      -- Questions may be long, and a poll only needs to know which there are.
      local is_question = string.sub(all[j], 1, 2) == 'q:'
      record[#record + 1], record[#record + 2] = all[j], is_question and '{}' or all[j + 1]
    end
    rows[#rows + 1] = {int(token), int(late), record}
  end
end
local first = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')
return {'CLAIMED', first[2] and int(math.max(0, tonumber(first[2]) - now)) or '-1', rows}
