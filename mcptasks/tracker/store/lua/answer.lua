-- Each answer whose question is open and has none yet is stored; the fleet delivers them at once.
--
-- KEYS: task, due
-- ARGV: task_id, owner, operator, answers...
-- RETURNS: ANSWERED count | IGNORED | GONE | NEWER schema

local r = redis.call('HMGET', task, 'owner', 'v')
if not r[1] or r[1] ~= owner and operator ~= '1' then return {'GONE'} end
if too_new(r[2]) then return {'NEWER', r[2]} end
local taken = 0
for i = 1, #answers, 2 do
  if redis.call('HEXISTS', task, 'q:' .. answers[i]) == 1 then
    -- The first answer wins.
    taken = taken + redis.call('HSETNX', task, 'a:' .. answers[i], answers[i + 1])
  end
end
if taken == 0 then return {'IGNORED'} end
if not is_asking(task) then redis.call('HSET', task, 'status', 'working') end
touch(task)
wanted_now(task, due, task_id)
return {'ANSWERED', int(taken)}
