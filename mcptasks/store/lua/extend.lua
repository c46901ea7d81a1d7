-- The task is kept for at least so long from now; its time never gets shorter. One that has ended stays as it is, and is
-- only kept longer.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, token, operator, ttl_ms, grace_ms
-- RETURNS: EXTENDED until_ms | KEPT until_ms | UNLIMITED | STALE | TERMINAL | GONE | NEWER schema
--
-- operator: the word of the operator who extends, as the timeline has it; '' it is the run with the token

local no = operator == '' and refused(task, token)
if no then return {no} end
local r = redis.call('HMGET', task, 'status', 'created', 'ttl', 'expires', 'gone', 'v', 'idem', 'artifacts')
if not r[1] then return {'GONE'} end
if too_new(r[6]) then return {'NEWER', r[6]} end
if r[3] == '' then return {'UNLIMITED'} end
local ended = TERMINAL[r[1]]
local stands, wanted = tonumber(ended and r[5] or r[4]), now + tonumber(ttl_ms)
if wanted <= stands then return {'KEPT', int(stands)} end

note(task, 'extend', operator ~= '' and operator or 'tool', int(wanted))
local gone = int(wanted)
if not ended then
  local ttl = wanted - tonumber(r[2])
  gone = int(wanted + ttl + tonumber(grace_ms))
  redis.call('HSET', task, 'ttl', int(ttl), 'expires', int(wanted))
end
redis.call('HSET', task, 'gone', gone)
-- The client sees another ttlMs; of what has ended it sees nothing new.
if not ended then touch(task, true) end

local prefix = prefix_of(task, task_id)
expire_at(gone, task, call, journal, result, task .. ':artifacts', timeline_of(task))
if r[7] then expire_at(gone, prefix .. 'idem:' .. r[7]) end
if r[8] then keep_files(r[8], task_id, gone) end
local entry = entry_of(prefix, task_id)
if entry then list_task(prefix, entry, task_id, ended and r[1] or 'active', tonumber(r[2]), gone) end
for _, index in ipairs({unsent, leases, expiry, countdowns}) do
  local due = redis.call('ZSCORE', index, task_id)
  -- The end of its time moves; what stands there for a question, and every other moment, does not.
  if due and index == expiry and tonumber(due) == stands then due = wanted end
  if due then index_add(index, tonumber(due), task_id, gone) end
end
return {'EXTENDED', int(wanted)}
