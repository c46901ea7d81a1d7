-- One overdue task is brought to where its record says it must be: expired, failed, its questions that nobody answered
-- in time answered as cancelled, or queued for another run.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, resend_ms, queue_prefix, wakes, expired_message, lost_message, timeout_message
-- RETURNS: RESEND run tool queue hard_limit | DUE run tool queue hard_limit | LOST run tool queue hard_limit
--   | QUEUED run tool queue hard_limit | WOKEN | PARTIAL | WAITING | FAILED reason | CANCELLED | COLD | NOTHING
--   | NEWER schema

-- How much later a record that this sweeper cannot read is looked at again.
local POSTPONED_MS = 60000

local function forget(...)
  for _, index in ipairs({...}) do redis.call('ZREM', index, task_id) end
  return {'NOTHING'}
end

local r = redis.call('HMGET', task, 'status', 'expires', 'held', 'attempt', 'max_attempts', 'cancel', 'deadline',
  'resends', 'v', 'gone', 'token', 'wake', 'queue', 'worker')
local status = r[1]
if not status or TERMINAL[status] then return forget(unsent, leases, expiry, countdowns) end
if too_new(r[9]) then
  -- For a newer worker to judge. Meanwhile its entries stand further back: a batch of such tasks at the head of an index
  -- would hide all others from this sweeper.
  for _, index in ipairs({unsent, leases, expiry}) do
    local due = redis.call('ZSCORE', index, task_id)
    if due and tonumber(due) <= now then redis.call('ZADD', index, int(now + POSTPONED_MS), task_id) end
  end
  return {'NEWER', r[9]}
end

-- -32603: the server could not finish what it accepted (SEP-2663: `failed` is for JSON-RPC errors only).
local function fail(reason, message, error)
  error = error or '{"code":-32603,"message":"' .. message .. '"}'
  settle(k, task_id, 'failed', reason, message, error)
  redis.call('PUBLISH', wakes, 'lost ' .. task_id .. ' ' .. r[11])
  return {'FAILED', reason}
end

if r[2] ~= '' and tonumber(r[2]) <= now then return fail('expired', expired_message) end

local has_worker = status == 'running' or r[3] == '1'
local lease = has_worker and redis.call('ZSCORE', leases, task_id)
local alive = lease and tonumber(lease) > now

-- A lost worker goes first: its run must not be taken for one that hears of the answer.
local watched = redis.call('ZSCORE', expiry, task_id)
if watched and tonumber(watched) <= now and (alive or not has_worker) then
  local late, failed, next_moment = {}, nil, tonumber(r[2])
  for _, name in ipairs(redis.call('HKEYS', task)) do
    if string.sub(name, 1, 2) == 'd:' then
      local due, what, error, message =
        string.match(redis.call('HGET', task, name), '^(%d+) (%S+) ?([^\n]*)\n?(.*)$')
      due = tonumber(due)
      if due > now then
        next_moment = math.min(next_moment or due, due)
      elseif what == 'cancel' then
        late[#late + 1], late[#late + 2] = string.sub(name, 3), '{"action":"cancel"}'
      elseif not failed or due < failed.due then
        failed = {due = due, error = error, message = message}
      end
    end
  end
  if (failed or late[1]) and r[6] == '1' then
    -- An acknowledged cancel goes before the end that the questions would bring.
    cancelled_by_now(k, task_id)
    redis.call('PUBLISH', wakes, 'lost ' .. task_id .. ' ' .. r[11])
    return {'CANCELLED'}
  end
  if failed then return fail('input_timeout', failed.message, failed.error) end
  redis.call('ZREM', expiry, task_id)
  if next_moment then index_add(expiry, next_moment, task_id, r[10]) end
  if late[1] then
    local word = take_answers(k, task_id, 'timeout', late, resend_ms, wakes)
    if word == 'QUEUED' then return {'QUEUED', next_run(task)} end
    return {word}
  end
end

if has_worker then
  if alive then return forget(unsent, countdowns) end
  -- The worker is gone, or so slow that its token must be.
  if r[6] == '1' then
    settle(k, task_id, 'cancelled', 'cancelled', 'Cancelled; its worker was lost', '')
    return {'CANCELLED'}
  end
  if r[3] == '1' then
    note(task, 'lost', r[11], r[14] or '')
    -- It was waiting for a person, who costs neither time nor attempts: nothing is lost but its place.
    go_cold(k, task_id)
    -- The old run's token is used up, so that it cannot write any more.
    redis.call('HINCRBY', task, 'token', 1)
    touch(task, false)
    return {'COLD'}
  end
  if r[7] and r[7] ~= '' and tonumber(r[7]) <= now then return fail('wall_timeout', timeout_message) end
  if tonumber(r[4]) >= tonumber(r[5]) then
    return fail('worker_lost', (string.gsub(lost_message, 'ATTEMPTS', r[4])))
  end
  note(task, 'lost', r[11], r[14] or '')
  local seen = enqueue(k, task_id, resend_ms)
  redis.call('HDEL', task, 'resume')
  touch(task, seen)
  -- With the token: the next run may be claimed before this is heard, and it is not the lost one.
  redis.call('PUBLISH', wakes, 'lost ' .. task_id .. ' ' .. r[11])
  return {'LOST', next_run(task)}
end

if status == 'parked' and not r[12] then return forget(unsent, leases) end

local due = redis.call('ZSCORE', unsent, task_id)
-- Its countdown, if it has one, is still under way.
if due and tonumber(due) > now then return forget(leases) end
if status == 'queued' and queue_prefix ~= '' then
  -- Nearly as many messages wait as there are tasks to be sent (the workers have some in hand): this one's is most likely
  -- among them, and another would only make the wait longer for all. It is looked for again in a time like that which
  -- such a queue may take.
  local waiting = redis.call('LLEN', queue_prefix .. r[13])
  if waiting > 0 and waiting >= 0.9 * count_soon(unsent, resend_ms) then
    index_add(unsent, now + math.min(tonumber(resend_ms) * (1 + waiting / 100), RESEND_MAX_MS), task_id, r[10])
    return {'WAITING'}
  end
end
local resends = tonumber(r[8]) + 1
redis.call('HSET', task, 'resends', int(resends))
index_add(unsent, now + math.min(tonumber(resend_ms) * 2 ^ resends, RESEND_MAX_MS), task_id, r[10])
return {status == 'queued' and 'RESEND' or 'DUE', next_run(task)}
