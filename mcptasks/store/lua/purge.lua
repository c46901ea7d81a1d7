-- Of these tasks, those that ended before the moment are gone, with all that is stored of them, before their time. Their
-- files are to be removed at once.
--
-- KEYS: ids
-- ARGV: before_ms, tasks...
-- RETURNS: PURGED count

local prefix, count = without(ids, 'ids'), 0
for _, id in ipairs(tasks) do
  local own = prefix .. 'task:{' .. id .. '}'
  local r = redis.call('HMGET', own, 'status', 'updated', 'v', 'idem', 'artifacts')
  if r[1] and not too_new(r[3]) and TERMINAL[r[1]] and tonumber(r[2]) < tonumber(before_ms) then
    redis.call('DEL', own, own .. ':call', own .. ':journal', own .. ':result', own .. ':artifacts', own .. ':timeline')
    if r[4] then redis.call('DEL', prefix .. 'idem:' .. r[4]) end
    if r[5] then redis.call('ZADD', r[5], 'XX', int(now), id) end
    forget_task(prefix, id)
    count = count + 1
  end
end
return {'PURGED', int(count)}
