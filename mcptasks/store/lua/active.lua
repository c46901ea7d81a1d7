-- The unfinished tasks, without those whose keys Redis has dropped.
--
-- KEYS: active
-- ARGV:
-- RETURNS: ACTIVE ids

count_active(active)
local reply = {'ACTIVE'}
for _, id in ipairs(redis.call('ZRANGE', active, 0, -1)) do reply[#reply + 1] = id end
return reply
