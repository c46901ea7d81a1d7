-- The task exists, is readable, and its message counts as unsent; or the idempotency key names the one that does.
--
-- KEYS: task, call, journal, idem, unsent, expiry, broker_queue, admission, origin
-- ARGV: task_id, tool, owner, owner_digest, call_json, mrtr, queue, ttl_ms, poll_ms, poll_parked_ms, resend_ms,
--   max_attempts, hard_limit_ms, grace_ms, version, idem_digest, message, retry_delays, owner_max, tool_max,
--   queue_max, batch, label, origin_label, answers...
-- RETURNS: CREATED created_ms | EXISTS task_id | CONFLICT task_id | CLOSED reason | FULL what limit | FINAL
--
-- origin: the failed task that this one retries, and the two as their timelines name them; no label: it retries none

-- The same id again is our own client sending once more what it saw no answer to.
local own = redis.call('HGET', task, 'created')
if own then return {'CREATED', own} end
if idem_digest ~= '' then
  local known = redis.call('GET', idem)
  if known then
    local id, digest = string.match(known, '^(%S+) (%S+)$')
    return {digest == idem_digest and 'EXISTS' or 'CONFLICT', id}
  end
end

if origin_label ~= '' and redis.call('HGET', origin, 'status') ~= 'failed' then return {'FINAL'} end

-- Nothing is reserved before this line, so a refusal leaves nothing behind.
local reason = redis.call('HGET', admission, 'reason')
if reason then return {'CLOSED', reason} end
if queue_max ~= '' and count_soon(unsent, resend_ms) >= tonumber(queue_max) then return {'FULL', 'queue', queue_max} end
local prefix, entry = prefix_of(task, task_id), task_id .. ' ' .. owner_digest .. ' ' .. tool
if owner_max ~= '' or tool_max ~= '' then
  forget_dropped(prefix, batch)
  local lists = lists_of(prefix, entry)
  if owner_max ~= '' and redis.call('ZCARD', lists[2] .. 'active') >= tonumber(owner_max) then return {'FULL', 'owner', owner_max} end
  if tool_max ~= '' and redis.call('ZCARD', lists[3] .. 'active') >= tonumber(tool_max) then return {'FULL', 'tool', tool_max} end
end

-- An unfinished task outlives its ttl by another one, so that the sweeper can fail it before Redis removes it.
local gone, expires = '', ''
if ttl_ms ~= '' then
  expires = int(now + tonumber(ttl_ms))
  gone = int(now + 2 * tonumber(ttl_ms) + tonumber(grace_ms))
end

redis.call('HSET', task, 'v', SCHEMA, 'id', task_id, 'tool', tool, 'owner', owner, 'status', 'queued',
  'created', int(now), 'updated', int(now), 'ttl', ttl_ms, 'expires', expires, 'gone', gone,
  'poll', poll_ms, 'poll_parked', poll_parked_ms, 'queue', queue, 'rev', '1', 'token', '0', 'attempt', '0',
  'max_attempts', max_attempts, 'hard_limit', hard_limit_ms, 'open', '0', 'resends', '0', 'look', '0',
  'retry', retry_delays, 'retries', '0', 'version', version)
redis.call('SET', call, call_json)
expire_at(gone, task, call)
if mrtr ~= '' then
  redis.call('HSET', journal, 'mrtr', mrtr)
  for i = 1, #answers, 2 do redis.call('HSET', journal, 'a:' .. answers[i], answers[i + 1]) end
  expire_at(gone, journal)
end
if idem_digest ~= '' then
  redis.call('SET', idem, task_id .. ' ' .. idem_digest)
  redis.call('HSET', task, 'idem', string.sub(idem, #prefix + #'idem:' + 1))
  expire_at(gone, idem)
end
list_task(prefix, entry, task_id, 'active', now, gone)
index_add(unsent, now + tonumber(resend_ms), task_id, gone)
if expires ~= '' then index_add(expiry, tonumber(expires), task_id, gone) end
if origin_label ~= '' then
  note(task, 'retried', 'of', origin_label)
  note(origin, 'retried', 'as', label)
end
if message ~= '' then redis.call('LPUSH', broker_queue, message) end
return {'CREATED', int(now)}
