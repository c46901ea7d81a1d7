-- Put before every script of the tracker, behind mcptasks.store's indexes.lua, whose lists it shares: in the place of a
-- tool stands the server.

local TERMINAL = {completed = true, failed = true, cancelled = true}

-- Keys that one task may ask for in its life: a server that asks for ever must not fill the store.
local ASKED_MAX = 1000
-- Entries of the stream of events, about.
local EVENTS_MAX = 10000
-- Consumers that are known by name.
local CONSUMERS_MAX = 100
-- A record of a newer mcptasks is for a newer tracker, and stands out of the way meanwhile.
local POSTPONED_MS = 60000

local function too_new(v) return v and tonumber(v) > SCHEMA end

-- The record changed; who waits for it hears the new revision on the channel that has its name.
local function touch(task)
  local before = tonumber(redis.call('HGET', task, 'updated') or '0')
  local rev = redis.call('HINCRBY', task, 'rev', 1)
  redis.call('HSET', task, 'updated', int(math.max(now, before + 1)))
  redis.call('PUBLISH', task, int(rev))
  return int(rev)
end

-- The task, its handle's key and its places in the lists live until then.
local function keep(task, task_id, where, gone)
  local prefix = prefix_of(task, task_id)
  local r = redis.call('HMGET', task, 'owner_digest', 'server', 'created', 'handled')
  redis.call('HSET', task, 'gone', int(gone))
  redis.call('PEXPIREAT', task, int(gone))
  if r[4] then redis.call('PEXPIREAT', prefix .. 'handle:' .. r[4], int(gone)) end
  list_task(prefix, task_id .. ' ' .. r[1] .. ' ' .. r[2], task_id, where, tonumber(r[3]), int(gone))
end

-- A live task's end moves on, now and then: not at every poll, because it costs a dozen commands.
local function keep_alive(task, task_id)
  local r = redis.call('HMGET', task, 'gone', 'live')
  if tonumber(r[1]) - now < 0.9 * tonumber(r[2]) then keep(task, task_id, 'active', now + tonumber(r[2])) end
end

-- Every consumer of the task is owed this news instead of what it was owed before. One that is being told something
-- right now hears of it afterwards: a task's news never run beside each other.
local function announce(task, task_id, kind)
  local prefix, rev = prefix_of(task, task_id), touch(task)
  local r = redis.call('HMGET', task, 'consumers', 'gone', 'server', 'tool', 'live', 'owner')
  redis.call('XADD', prefix .. 'events', 'MAXLEN', '~', EVENTS_MAX, '*', 'event', task_id .. ':' .. rev, 'kind', kind,
    'task', task_id, 'server', r[3], 'tool', r[4], 'owner', r[6])
  redis.call('PEXPIRE', prefix .. 'events', r[5])
  for name in string.gmatch(r[1], '%S+') do
    index_add(prefix .. 'consumers', now, name, r[2])
    redis.call('HSET', task, 'e:' .. name, rev .. ' ' .. kind, 't:' .. name, '0')
    redis.call('HDEL', task, 'x:' .. name)
    redis.call('ZREM', prefix .. 'dead', task_id .. ' ' .. name)
    local held = redis.call('HGET', task, 'l:' .. name)
    if not (held and tonumber(held) > now) then index_add(prefix .. 'outbox:' .. name, now, task_id, r[2]) end
  end
  redis.call('ZREMRANGEBYRANK', prefix .. 'consumers', 0, -CONSUMERS_MAX - 1)
end

-- Nothing is left of a task whose keys Redis has dropped.
local function forget_tracked(prefix, task_id)
  forget_task(prefix, task_id)
  for _, name in ipairs(redis.call('ZRANGE', prefix .. 'consumers', 0, -1)) do
    redis.call('ZREM', prefix .. 'dead', task_id .. ' ' .. name)
    -- Where no worker has that consumer nobody else takes it out.
    redis.call('ZREM', prefix .. 'outbox:' .. name, task_id)
  end
end

-- The task ends here: it is polled no more, its questions close, and it is kept for one ttl.
local function settle(task, task_id, status, reason, message)
  local prefix = prefix_of(task, task_id)
  for _, name in ipairs(redis.call('HKEYS', task)) do
    local kind = string.sub(name, 1, 2)
    if kind == 'q:' or kind == 'a:' or kind == 's:' then redis.call('HDEL', task, name) end
  end
  redis.call('HDEL', task, 'args', 'lease', 'again', 'asked', 'error_text')
  redis.call('HSET', task, 'status', status, 'reason', reason)
  ended = {redis.call('HGET', task, 'server'), status, reason, int(now - redis.call('HGET', task, 'created'))}
  if message ~= '' then redis.call('HSET', task, 'msg', message) end
  redis.call('ZREM', prefix .. 'due', task_id)
  local r = redis.call('HMGET', task, 'ttl', 'owner_digest', 'server')
  for _, list in ipairs(lists_of(prefix, task_id .. ' ' .. r[2] .. ' ' .. r[3])) do
    redis.call('ZREM', list .. 'active', task_id)
  end
  keep(task, task_id, status, now + tonumber(r[1]))
  announce(task, task_id, status)
end

-- Somebody should look at the task at once; whoever is looking right now looks once more afterwards.
local function wanted_now(task, due, task_id)
  local r = redis.call('HMGET', task, 'lease', 'gone')
  if r[1] and tonumber(r[1]) > now then
    redis.call('HSET', task, 'again', '1')
  else
    index_add(due, now, task_id, r[2])
  end
end

-- What the server shows of its questions (a flat list of key, question). A key that was seen before is no news, be it
-- open, answered or over. True: one is new.
local function take_questions(task, shown)
  local here, new = {}, false
  for i = 1, #shown, 2 do
    here['q:' .. shown[i]] = true
    if redis.call('HSETNX', task, 's:' .. shown[i], '1') == 1 then
      redis.call('HSET', task, 'q:' .. shown[i], shown[i + 1])
      redis.call('HINCRBY', task, 'asked', 1)
      new = true
    end
  end
  for _, name in ipairs(redis.call('HKEYS', task)) do
    -- Not shown any more: answered elsewhere, or out of time. An answer that is still here has nobody to go to.
    if string.sub(name, 1, 2) == 'q:' and not here[name] then
      redis.call('HDEL', task, name, 'a:' .. string.sub(name, 3))
    end
  end
  return new
end

-- Whether a question is open that nobody has answered.
local function is_asking(task)
  local fields = {}
  for _, name in ipairs(redis.call('HKEYS', task)) do fields[name] = true end
  for name in pairs(fields) do
    if string.sub(name, 1, 2) == 'q:' and not fields['a:' .. string.sub(name, 3)] then return true end
  end
  return false
end

-- What a server said of its task (o: status, reason, message, result, failure, truncated, shown) is the record's state.
-- True: that was the end.
local function take_state(task, task_id, o)
  if TERMINAL[o.status] then
    if o.result ~= '' then redis.call('HSET', task, 'result', o.result) end
    if o.failure ~= '' then redis.call('HSET', task, 'failure', o.failure) end
    if o.truncated == '1' then redis.call('HSET', task, 'truncated', '1') end
    settle(task, task_id, o.status, o.reason, o.message)
    return true
  end
  local before = redis.call('HMGET', task, 'status', 'msg')
  local new = take_questions(task, o.shown)
  if tonumber(redis.call('HGET', task, 'asked') or '0') > ASKED_MAX then
    settle(task, task_id, 'failed', 'protocol', 'The server asks more than 1,000 questions')
    return true
  end
  local status = is_asking(task) and 'input_required' or 'working'
  redis.call('HSET', task, 'status', status, 'msg', o.message)
  if new then
    announce(task, task_id, 'input_required')
  elseif status ~= before[1] or o.message ~= (before[2] or '') then
    touch(task)
  end
  return false
end
