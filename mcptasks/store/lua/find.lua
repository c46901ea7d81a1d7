-- The one task whose id begins so; of those that the owner has, or, for the operator, of all.
--
-- KEYS: ids
-- ARGV: start, owner_digest, operator, looks
-- RETURNS: FOUND task_id | NONE | SEVERAL

local prefix = without(ids, 'ids')
local found
local entries = redis.call('ZRANGE', ids, '[' .. start, '(' .. start .. '\255', 'BYLEX', 'LIMIT', 0, looks)
for _, entry in ipairs(entries) do
  local id, owner = string.match(entry, '^(%S+) (%S+)')
  if operator == '1' or owner == owner_digest then
    if redis.call('EXISTS', prefix .. 'task:{' .. id .. '}') == 0 then
      forget_task(prefix, id)
    elseif found then
      return {'SEVERAL'}
    else
      found = id
    end
  end
end
return found and {'FOUND', found} or {'NONE'}
