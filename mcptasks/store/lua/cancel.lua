-- The wish to cancel is stored. A task without a worker ends at once; a running one is told.
--
-- KEYS: task, call, journal, result, unsent, leases, expiry, countdowns
-- ARGV: task_id, owner, operator, wakes, message, said
-- RETURNS: CANCELLED | REQUESTED | FINISHED | GONE | NEWER schema
--
-- operator: the word of the operator who cancels, as the timeline has it; '' it is the caller

local r = redis.call('HMGET', task, 'owner', 'status', 'held', 'v')
if not r[1] or r[1] ~= owner and operator == '' then return {'GONE'} end
if too_new(r[4]) then return {'NEWER', r[4]} end
if TERMINAL[r[2]] then return {'FINISHED'} end
local by = operator ~= '' and operator or 'client'
if r[2] == 'running' or r[3] == '1' then
  -- The flag outlives every process: the lease renewal reads it when nobody heard the publish.
  if redis.call('HSETNX', task, 'cancel', '1') == 1 then
    redis.call('HSET', task, 'why', message)
    note(task, 'cancel', by, said)
    touch(task, false)
  end
  redis.call('PUBLISH', wakes, 'cancel ' .. task_id)
  return {'REQUESTED'}
end
note(task, 'cancel', by, said)
settle(k, task_id, 'cancelled', 'cancelled', message, '')
return {'CANCELLED'}
