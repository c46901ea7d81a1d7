-- How many tasks of a list there are in each status, as far as there are looks for the unfinished ones, or, where only
-- those of one tool count, for all. Those whose time is up, but which nobody has failed yet, count as overdue and in no
-- status. MORE: the next ones come after the place that is told. AGAIN: there are more tasks to be forgotten first,
-- because Redis has dropped their keys.
--
-- KEYS: ids
-- ARGV: list, tool, after_ms, after_id, looks, batch
-- RETURNS: COUNTED newer overdue counts | MORE newer overdue counts created_ms task_id | AGAIN
--
-- tool: '' for all of the list's; counts: a status, its number, and since when (ms) the longest has been in it ('' of
-- ended ones), in turn; of newer ones (which cannot be read) there is only the number

local prefix = without(ids, 'ids')
if forget_dropped(prefix, batch) == tonumber(batch) then return {'AGAIN'} end
local readers = {}
-- One after the other in the order of creation, in which a task keeps its place when it ends meanwhile.
for _, where in ipairs(tool == '' and {'active'} or {'active', unpack(ENDS)}) do
  readers[where] = reader(prefix .. list .. where, after_ms, after_id)
end
local numbers, since, newer, overdue, last_ms, last_id = {}, {}, 0, 0, after_ms, after_id
for _ = 1, tonumber(looks) do
  local one, id, created = newest_of(readers)
  if not one then break end
  one.at, last_ms, last_id = one.at + 2, int(created), id
  local r = redis.call('HMGET', prefix .. 'task:{' .. id .. '}', 'status', 'expires', 'v', 'tool', 'updated')
  if r[1] and (tool == '' or r[4] == tool) then
    if too_new(r[3]) then
      newer = newer + 1
    elseif not TERMINAL[r[1]] and r[2] ~= '' and tonumber(r[2]) <= now then
      overdue = overdue + 1
    else
      numbers[r[1]] = (numbers[r[1]] or 0) + 1
      if not TERMINAL[r[1]] then since[r[1]] = math.min(since[r[1]] or now, tonumber(r[5])) end
    end
  end
end
local more = newest_of(readers)
if not more and tool == '' then
  for _, status in ipairs(ENDS) do numbers[status] = redis.call('ZCARD', prefix .. list .. status) end
end
local counts = {}
for status, number in pairs(numbers) do
  local n = #counts
  counts[n + 1], counts[n + 2], counts[n + 3] = status, int(number), since[status] and int(since[status]) or ''
end
if more then return {'MORE', int(newer), int(overdue), counts, last_ms, last_id} end
return {'COUNTED', int(newer), int(overdue), counts}
