-- The unfinished tasks, without those whose keys Redis has dropped. AGAIN: there are more of these to be forgotten first.
--
-- KEYS: ids
-- ARGV: batch
-- RETURNS: ACTIVE ids | AGAIN

local prefix = without(ids, 'ids')
if forget_dropped(prefix, batch) == tonumber(batch) then return {'AGAIN'} end
local reply = {'ACTIVE'}
for _, id in ipairs(redis.call('ZRANGE', prefix .. 'list:active', 0, -1)) do reply[#reply + 1] = id end
return reply
