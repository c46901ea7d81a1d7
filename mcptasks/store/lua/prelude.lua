-- Put before every script, behind indexes.lua. The locals that a script's header names stand above both.

local TERMINAL = {completed = true, failed = true, cancelled = true}

-- The distances at which a message is sent again grow up to this.
local RESEND_MAX_MS = 300000

-- Redis drops a task's keys and tells nobody, so the index of its files must outlive them: by as long as a fleet may
-- have no sweeper.
local FILES_GRACE_MS = 30 * 86400000

-- The record changed. `visible`: a client could see it, so lastUpdatedAt moves, never backwards and never twice to the
-- same moment, which makes it an order of what clients see; and whoever listens to the task hears the new revision, on
-- the channel that has the record's name. `kind` stands behind the revision where a listener may take its time.
local function touch(task, visible, kind)
  local rev = redis.call('HINCRBY', task, 'rev', 1)
  if visible then
    local before = tonumber(redis.call('HGET', task, 'updated') or '0')
    redis.call('HSET', task, 'updated', int(math.max(now, before + 1)))
    redis.call('PUBLISH', task, int(rev) .. (kind or ''))
  end
end

-- Every key of the task dies at the same moment.
local function expire_at(gone, ...)
  for _, key in ipairs({...}) do
    if gone == '' then redis.call('PERSIST', key) else redis.call('PEXPIREAT', key, gone) end
  end
end
local function expire_with_task(task, ...) expire_at(redis.call('HGET', task, 'gone'), ...) end

-- A task's timeline has what its record does not tell by itself: a list of texts, each a moment, a word, and what goes
-- with the word. Those of its head stay, then the oldest go; behind the head stands then how many did.
local TIMELINE_MAX, TIMELINE_HEAD = 253, 7

local function timeline_of(task) return task .. ':timeline' end

-- The timeline has one more entry, which happened `age` ms ago. A task to which nothing happens has no timeline: until
-- then its record tells of its one run, so whoever changes what it tells of that comes here first.
local function note_from(age, task, ...)
  local timeline = timeline_of(task)
  local length = redis.call('LLEN', timeline)
  if length == 0 then
    local r = redis.call('HMGET', task, 'token', 'started', 'attempt', 'worker', 'ran')
    if r[2] then
      redis.call('RPUSH', timeline, table.concat({r[2], 'claim', r[1], r[3], r[4] or r[5] or ''}, ' '))
    end
  end
  local over = redis.call('RPUSH', timeline, table.concat({int(now - age), ...}, ' ')) - TIMELINE_MAX
  if over > 0 then
    local at = over == 1 and TIMELINE_HEAD or TIMELINE_HEAD + 1
    local omitted = over == 1 and 0 or string.match(redis.call('LINDEX', timeline, TIMELINE_HEAD), '%d+$')
    local oldest = redis.call('LINDEX', timeline, at)
    local gone = string.match(oldest, '^%d+ omitted (%d+)$') or 1
    redis.call('LSET', timeline, TIMELINE_HEAD, string.match(oldest, '^%d+') .. ' omitted ' .. int(omitted + gone))
    if over > 1 then
      redis.call('LSET', timeline, at, '')
      redis.call('LREM', timeline, 1, '')
    end
  end
  if length == 0 then expire_with_task(task, timeline) end
end
local function note(task, ...) note_from(0, task, ...) end

-- What the tool said beside its work stands in the timeline: triples of how many ms ago, the word, the text.
local function note_said(task, said)
  for i = 1, #said, 3 do note_from(tonumber(said[i]), task, said[i + 1], said[i + 2]) end
end

-- The task's files are to be removed at that moment (gone == '': never).
local function keep_files(index, task_id, gone)
  if gone == '' then return index_add(index, 9e15, task_id, '') end
  index_add(index, tonumber(gone), task_id, int(tonumber(gone) + FILES_GRACE_MS))
end

-- A newer mcptasks wrote the record (`v`): what stands in it is not for this one to judge or to change.
local function too_new(v) return v and tonumber(v) > SCHEMA end

-- Why a worker's write may not be done, or nil. Only the run that holds the live token writes; a held run is parked
-- for the client but still has its worker. A record that has become too new is another run's.
local function refused(task, token)
  local r = redis.call('HMGET', task, 'status', 'token', 'held', 'v')
  if not r[1] then return 'GONE' end
  if too_new(r[4]) then return 'STALE' end
  if TERMINAL[r[1]] then return 'TERMINAL' end
  if r[2] ~= token or not (r[1] == 'running' or r[3] == '1') then return 'STALE' end
  return nil
end

-- No run works on the task any more, so how fast it gets on is not known. True: a client saw that until now.
local function unhand(task)
  redis.call('HDEL', task, 'held', 'worker', 'nonce', 'deadline')
  return redis.call('HDEL', task, 'rate') == 1
end

-- The task ends here. Its questions close, it leaves every index of what is to be done, and is kept for one more ttl.
local function settle(k, task_id, status, reason, message, payload)
  -- What only a run needed goes, and so does what was called, unless the task failed, so that it can be retried: an ended
  -- task may be kept for long, and a hash of few and short values takes a third of the memory.
  local kept = {v = 1, id = 1, tool = 1, owner = 1, created = 1, updated = 1, started = 1, rev = 1, ttl = 1, poll = 1,
    queue = 1, token = 1, attempt = 1, max_attempts = 1, retries = 1, hard_limit = 1, cancel = 1, why = 1, msg = 1,
    progress = 1, total = 1, progressed = 1, version = 1, idem = 1, artifacts = 1}
  local failed = status == 'failed'
  kept.retry = failed and 1
  local record, all = {}, redis.call('HGETALL', k.task)
  for i = 1, #all, 2 do
    if kept[all[i]] then record[all[i]] = all[i + 1] end
    -- One long value would cost such a hash more than all its others.
    if all[i] == 'worker' and #all[i + 1] <= 64 then record.ran = all[i + 1] end
  end
  local gone = record.ttl == '' and '' or int(now + tonumber(record.ttl))
  record.status, record.reason, record.gone = status, reason, gone
  ended = {record.tool, status, reason, int(now - record.created)}
  -- Who cancelled said why; that is better than what we would say.
  if status == 'cancelled' and record.why then message = record.why end
  if message ~= '' then record.msg = message end
  -- As in `touch`.
  record.rev, record.updated = int(record.rev + 1), int(math.max(now, record.updated + 1))
  local flat = {}
  for name, value in pairs(record) do flat[#flat + 1], flat[#flat + 2] = name, value end
  local keys = {k.task, k.journal, timeline_of(k.task)}
  if payload ~= '' then
    -- Before anything is freed: a store without memory refuses a script at its first write that needs some, and no later.
    redis.call('SET', k.result, payload)
    keys[#keys + 1] = k.result
  end
  redis.call('DEL', k.task)
  if failed then keys[#keys + 1] = k.call else redis.call('DEL', k.call) end
  redis.call('HSET', k.task, unpack(flat))
  local prefix = prefix_of(k.task, task_id)
  if record.idem then keys[#keys + 1] = prefix .. 'idem:' .. record.idem end
  if record.artifacts then
    keys[#keys + 1] = k.task .. ':artifacts'
    keep_files(record.artifacts, task_id, gone)
  end
  expire_at(gone, unpack(keys))
  redis.call('PUBLISH', k.task, record.rev)

  local entry = entry_of(prefix, task_id)
  for _, list in ipairs(entry and lists_of(prefix, entry) or {}) do redis.call('ZREM', list .. 'active', task_id) end
  if entry then list_task(prefix, entry, task_id, status, tonumber(record.created), gone) end
  for _, index in ipairs({k.unsent, k.leases, k.expiry, k.countdowns}) do redis.call('ZREM', index, task_id) end
end

-- The task waits for a worker; its message counts as unsent until a run is claimed. True: a client could see it.
local function enqueue(k, task_id, resend_ms)
  redis.call('HSET', k.task, 'status', 'queued', 'resends', '0')
  redis.call('HDEL', k.task, 'wake')
  index_add(k.unsent, now + tonumber(resend_ms), task_id, redis.call('HGET', k.task, 'gone'))
  redis.call('ZREM', k.leases, task_id)
  redis.call('ZREM', k.countdowns, task_id)
  return unhand(k.task)
end

-- The worker has let go of a task that is to run again at that time. Not an attempt lost: `resume` keeps their count.
local function retry_at(k, task_id, due, message)
  redis.call('HSET', k.task, 'status', 'retrying', 'due', int(due), 'msg', message, 'resume', '1', 'resends', '0')
  unhand(k.task)
  redis.call('ZREM', k.leases, task_id)
  touch(k.task, true)
end

-- How many tasks wait for a worker: each has a message within five minutes. What is due later sleeps, or waits for a
-- retry.
local function count_soon(unsent, resend_ms)
  return redis.call('ZCOUNT', unsent, '-inf', int(now + math.max(tonumber(resend_ms), RESEND_MAX_MS)))
end

-- What a message for the task's next run needs: run number, tool, queue, hard limit.
local function next_run(task)
  local r = redis.call('HMGET', task, 'token', 'tool', 'queue', 'hard_limit')
  return int(tonumber(r[1]) + 1), r[2], r[3], r[4]
end

-- When a parked task looks after itself next: the countdown of this look, or 0 when it goes cold, because the looks
-- are used up or the fleet's budget of countdown messages is.
local function next_countdown(k, task_id, budget, delays, look)
  local countdown = tonumber(delays[look])
  redis.call('ZREM', k.countdowns, task_id)
  redis.call('ZREMRANGEBYSCORE', k.countdowns, '-inf', int(now - 1))
  if not countdown or redis.call('ZCARD', k.countdowns) >= tonumber(budget) then
    redis.call('HSET', k.task, 'look', '0')
    return '0', '0'
  end
  redis.call('HSET', k.task, 'look', int(look))
  index_add(k.countdowns, now + countdown, task_id, redis.call('HGET', k.task, 'gone'))
  return int(countdown), int(look)
end

-- The task's next message is due in so long. A short delay travels as a countdown, if the fleet's budget has room; the
-- sweeper has every delay. Returns the countdown, 0 for none.
local function put_off(k, task_id, delay, countdown_max_ms, budget, resend_ms, gone)
  redis.call('ZREMRANGEBYSCORE', k.countdowns, '-inf', int(now - 1))
  if delay > tonumber(countdown_max_ms) or redis.call('ZCARD', k.countdowns) >= tonumber(budget) then
    index_add(k.unsent, now + delay, task_id, gone)
    return 0
  end
  index_add(k.countdowns, now + delay, task_id, gone)
  index_add(k.unsent, now + delay + tonumber(resend_ms), task_id, gone)
  return delay
end

-- The worker is about to let go of its task. A cancel that was acknowledged meanwhile is carried out now, because no
-- run is left to hear of it.
local function cancelled_by_now(k, task_id)
  if redis.call('HGET', k.task, 'cancel') ~= '1' then return false end
  settle(k, task_id, 'cancelled', 'cancelled', 'Cancelled', '')
  return true
end

-- A task that waits for a person has no worker any more. Its answers move it on, or its first timer where it has one.
local function go_cold(k, task_id)
  redis.call('HSET', k.task, 'resume', '1', 'look', '0')
  unhand(k.task)
  redis.call('HDEL', k.task, 'deferrals')
  redis.call('ZREM', k.leases, task_id)
  local r = redis.call('HMGET', k.task, 'wake', 'gone')
  if r[1] then index_add(k.unsent, tonumber(r[1]), task_id, r[2]) end
end

-- The sweeper looks at the task at that moment at the latest. Where it stands too early, it is only a look too many.
local function watch_until(k, task_id, moment)
  local known = redis.call('ZSCORE', k.expiry, task_id)
  if known and tonumber(known) <= moment then return end
  index_add(k.expiry, moment, task_id, redis.call('HGET', k.task, 'gone'))
end

-- Each answer (a flat list of key, answer) whose question is open is stored; with the last one the task moves on by
-- itself. Returns the word for what that came to.
local function take_answers(k, task_id, by, answers, resend_ms, wakes)
  local r = redis.call('HMGET', k.task, 'status', 'open', 'held')
  local open = tonumber(r[2])
  local taken = {}
  for i = 1, #answers, 2 do
    -- The first valid answer wins; a key that is not open (unknown, answered, out of time) is passed over.
    if redis.call('HDEL', k.task, 'q:' .. answers[i]) == 1 then
      redis.call('HDEL', k.task, 'd:' .. answers[i])
      redis.call('HSET', k.journal, 'a:' .. answers[i], answers[i + 1])
      taken[#taken + 1] = answers[i]
    end
  end
  if #taken == 0 then return 'IGNORED' end
  open = open - #taken
  expire_with_task(k.task, k.journal)
  note(k.task, 'answer', by, unpack(taken))
  redis.call('HSET', k.task, 'open', int(open))
  touch(k.task, true)
  if open > 0 then return 'PARTIAL', int(open) end
  if r[3] == '1' then
    -- The run still has its worker: it goes on where it stands.
    redis.call('HSET', k.task, 'status', 'running')
    redis.call('HDEL', k.task, 'held')
    redis.call('PUBLISH', wakes, 'answer ' .. task_id)
    return 'WOKEN'
  end
  -- One of its timers has set it going, or it is to be tried again: the run that has it, or will, finds the answers.
  if r[1] ~= 'parked' then return 'WOKEN' end
  enqueue(k, task_id, resend_ms)
  return 'QUEUED'
end

-- The worker has let go of a task whose run is held.
local function cold_if_held(k, task_id)
  if redis.call('HGET', k.task, 'held') ~= '1' then return false end
  note(k.task, 'park')
  go_cold(k, task_id)
  touch(k.task, false)
  return true
end

-- The worker lets go of a task that waits for a person.
local function let_go(k, task_id, budget, delays)
  note(k.task, 'park')
  go_cold(k, task_id)
  return next_countdown(k, task_id, budget, delays, 1)
end
