-- Nothing is left of so many tasks whose keys Redis has dropped. MORE: there may be others.
--
-- KEYS: ids, drops
-- ARGV: batch
-- RETURNS: FORGOTTEN count | MORE count

local prefix = without(ids, 'ids')
local dropped = redis.call('ZRANGE', drops, '-inf', '(' .. int(now), 'BYSCORE', 'LIMIT', 0, batch)
for _, task_id in ipairs(dropped) do forget_tracked(prefix, task_id) end
if #dropped == tonumber(batch) then return {'MORE', int(#dropped)} end
return {'FORGOTTEN', int(#dropped)}
