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

-- Several times as cheap as `count`, which is for exact answers of any list: a look is one field of one record.
local CHUNK = 100
local prefix = without(ids, 'ids')
if forget_dropped(prefix, batch) == tonumber(batch) then return {'AGAIN'} end
local numbers, since, overdue = {}, {}, 0
for i = 1, #known, 2 do since[known[i]] = tonumber(known[i + 1]) end
-- A task whose time is up has an entry that is due: without one there is none.
local some_overdue = redis.call('ZCOUNT', expiry, '-inf', int(now)) > 0

local function is_overdue(task)
  local expires = redis.call('HGET', task, 'expires')
  return expires ~= '' and tonumber(expires) <= now
end

local function in_it_since(task, status)
  local r = redis.call('HMGET', task, 'updated', 'started', 'token')
  if status == 'running' then return tonumber(r[2]) end
  -- What was given back, or lost its worker, waits again; its caller saw nothing of that, but the timeline did.
  local last = status == 'queued' and r[3] ~= '0' and redis.call('LINDEX', timeline_of(task), -1)
  return math.max(tonumber(r[1]), last and tonumber(string.match(last, '^%d+')) or 0)
end

local function look_at(id, created)
  local task = prefix .. 'task:{' .. id .. '}'
  local status = redis.call('HGET', task, 'status')
  if not status or TERMINAL[status] then return end
  if some_overdue and is_overdue(task) then
    overdue = overdue + 1
    return
  end
  numbers[status] = (numbers[status] or 0) + 1
  -- In the order of creation: from some task on, none can have been in its status for longer.
  local first = since[status]
  if not first or created < first then since[status] = math.min(first or now, in_it_since(task, status)) end
end

local active, left, last_ms, last_id = prefix .. 'list:active', tonumber(looks), after_ms, after_id
local rank, at_end = after_ms == '' and 0 or redis.call('ZCOUNT', active, '-inf', '(' .. after_ms), false
while left > 0 and not at_end do
  local chunk = redis.call('ZRANGE', active, rank, rank + CHUNK - 1, 'WITHSCORES')
  rank, at_end = rank + CHUNK, #chunk < 2 * CHUNK
  for i = 1, #chunk, 2 do
    local id, created = chunk[i], tonumber(chunk[i + 1])
    -- Several may be of the same millisecond.
    if after_ms == '' or created > tonumber(after_ms) or greater(id, after_id) then
      if left == 0 then
        at_end = false
        break
      end
      look_at(id, created)
      left, last_ms, last_id = left - 1, int(created), id
    end
  end
end
local counts = {}
for status, number in pairs(numbers) do
  local n = #counts
  counts[n + 1], counts[n + 2], counts[n + 3] = status, int(number), int(since[status])
end
if at_end then return {'TALLIED', int(overdue), counts} end
return {'MORE', int(overdue), counts, last_ms, last_id}
