-- How many unfinished tasks there are in each status, and since when the first of them has been in it, as far as there
-- are looks. Those whose time is up, but which nobody has failed yet, count as overdue and in no status. MORE: the next
-- ones come after the place that is told. AGAIN: there are more tasks to be forgotten first, because Redis has dropped
-- their keys.
--
-- KEYS: ids, expiry
-- ARGV: after_ms, after_id, looks, batch, known...
-- RETURNS: TALLIED overdue counts | MORE overdue counts created_ms task_id | AGAIN
--
-- known: a status and since when (ms), in turn, as of the tasks before; counts: a status, its number, and since when (ms)
-- the longest has been in it, those before included. Of what a newer mcptasks wrote, the status counts as it stands.

-- `count` is for exact answers of any list; this one reads a field per task, of many at once.
local CHUNK = 200
local prefix = without(ids, 'ids')
local active = prefix .. 'list:active'
if forget_dropped(prefix, batch) == tonumber(batch) then return {'AGAIN'} end
local numbers, since, overdue = {}, {}, 0
for i = 1, #known, 2 do since[known[i]] = tonumber(known[i + 1]) end
-- A task whose time is up has an entry that is due: without one there is none.
local some_overdue = redis.call('ZCOUNT', expiry, '-inf', int(now)) > 0

local function record_of(id) return prefix .. 'task:{' .. id .. '}' end

local function is_overdue(id)
  local expires = redis.call('HGET', record_of(id), 'expires')
  return expires ~= '' and tonumber(expires) <= now
end

local function in_it_since(id, status)
  local task = record_of(id)
  local r = redis.call('HMGET', task, 'updated', 'started', 'token')
  if status == 'running' then return tonumber(r[2]) end
  -- What was given back, or lost its worker, waits again; its caller saw nothing of that, but the timeline did.
  local last = status == 'queued' and r[3] ~= '0' and redis.call('LINDEX', timeline_of(task), -1)
  return math.max(tonumber(r[1]), last and tonumber(string.match(last, '^%d+')) or 0)
end

-- The statuses of so many tasks from that rank on; false of one whose record is gone. All at once is much quicker, but a
-- login that may see its own keys alone is refused that, and a cluster refuses it to everybody; and a star in the prefix
-- would be taken for the id.
local at_once = not string.find(prefix, '*', 1, true)
local function statuses_of(rank, size)
  local found = at_once
    and redis.pcall('SORT', active, 'BY', 'nosort', 'LIMIT', rank, size, 'GET', record_of('*') .. '->status')
  if found and not found.err then return found end
  at_once, found = false, {}
  for i, id in ipairs(redis.call('ZRANGE', active, rank, rank + size - 1)) do
    found[i] = redis.call('HGET', record_of(id), 'status')
  end
  return found
end

-- The tasks are in the order of creation, and the first of these was created then: once that is later than the first
-- moment of a status, no task from here on has been in it for longer.
local function look_closer(statuses, rank, created)
  local closer = some_overdue
  for status in pairs(numbers) do closer = closer or not since[status] or created < since[status] end
  if not closer then return end
  for i, id in ipairs(redis.call('ZRANGE', active, rank, rank + #statuses - 1)) do
    local status = statuses[i]
    if status and some_overdue and is_overdue(id) then
      overdue, numbers[status] = overdue + 1, numbers[status] - 1
    elseif status and (not since[status] or created < since[status]) then
      since[status] = math.min(since[status] or now, in_it_since(id, status))
    end
  end
end

-- Behind the place, where it stands or stood.
local function first_rank()
  if after_ms == '' then return 0 end
  local rank = redis.call('ZCOUNT', active, '-inf', '(' .. after_ms)
  -- Several may be of the same millisecond.
  for _, id in ipairs(redis.call('ZRANGE', active, after_ms, after_ms, 'BYSCORE')) do
    if not greater(id, after_id) then rank = rank + 1 end
  end
  return rank
end

local rank, left, at_end = first_rank(), tonumber(looks), false
while left > 0 and not at_end do
  local size = math.min(CHUNK, left)
  local statuses = statuses_of(rank, size)
  if #statuses > 0 then
    for i = 1, #statuses do
      local status = statuses[i]
      if status then numbers[status] = (numbers[status] or 0) + 1 end
    end
    look_closer(statuses, rank, tonumber(redis.call('ZRANGE', active, rank, rank, 'WITHSCORES')[2]))
  end
  rank, left, at_end = rank + #statuses, left - #statuses, #statuses < size
end
local counts = {}
for status, number in pairs(numbers) do
  if number > 0 then
    local n = #counts
    counts[n + 1], counts[n + 2], counts[n + 3] = status, int(number), int(since[status])
  end
end
if at_end then return {'TALLIED', int(overdue), counts} end
local last = redis.call('ZRANGE', active, rank - 1, rank - 1, 'WITHSCORES')
return {'MORE', int(overdue), counts, int(tonumber(last[2])), last[1]}
