-- The tasks of a list in these statuses that come after a place in it, newest first: as many as there are room for and
-- looks to spend. MORE: there may be others after the place that is told.
--
-- KEYS: ids
-- ARGV: list, after_ms, after_id, owner, operator, tool, room, looks, columns, statuses...
-- RETURNS: END newer rows | MORE newer rows created_ms task_id
--
-- columns: fields of the record by name; a row is their values. newer: how many tasks could not be read

local names = {}
for name in string.gmatch(columns, '%S+') do names[#names + 1] = name end
local prefix = without(ids, 'ids')

-- Most of those that a list of one status goes through are not wanted; what decides that is read first, and no more.
local known = {'status', 'v'}
if operator ~= '1' then known[#known + 1] = 'owner' end
if tool ~= '' then known[#known + 1] = 'tool' end

local wanted, readers = {}, {}
for _, status in ipairs(statuses) do
  wanted[status] = true
  local where = TERMINAL[status] and status or 'active'
  if not readers[where] then readers[where] = reader(prefix .. list .. where, after_ms, after_id) end
end

local rows, newer, dropped, last_ms, last_id = {}, 0, {}, after_ms, after_id
for _ = 1, tonumber(looks) do
  local one, id, created = newest_of(readers)
  if not one or #rows == tonumber(room) then break end
  one.at = one.at + 2
  last_ms, last_id = int(created), id
  local task = prefix .. 'task:{' .. id .. '}'
  local found = redis.call('HMGET', task, unpack(known))
  if not found[1] then
    dropped[#dropped + 1] = id
  elseif (operator == '1' or found[3] == owner) and (tool == '' or found[#known] == tool) then
    if too_new(found[2]) then
      newer = newer + 1
    elseif wanted[found[1]] then
      rows[#rows + 1] = redis.call('HMGET', task, unpack(names))
    end
  end
end
local more = newest_of(readers)
-- Not before: a reader counts on its list as it was.
for _, id in ipairs(dropped) do forget_task(prefix, id) end
if more then return {'MORE', int(newer), rows, last_ms, last_id} end
return {'END', int(newer), rows}
