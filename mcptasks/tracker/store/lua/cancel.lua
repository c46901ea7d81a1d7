-- The wish to cancel is stored, for the fleet to deliver. What has no handle, and never will, ends at once.
--
-- KEYS: task, due, trackers
-- ARGV: task_id, owner, operator, message
-- RETURNS: REQUESTED trackers | CANCELLED | FINISHED status | GONE | NEWER schema

local r = redis.call('HMGET', task, 'owner', 'status', 'v', 'cancel')
if not r[1] or r[1] ~= owner and operator ~= '1' then return {'GONE'} end
if too_new(r[3]) then return {'NEWER', r[3]} end
if TERMINAL[r[2]] then return {'FINISHED', r[2]} end
if r[2] == 'unknown' then
  settle(task, task_id, 'cancelled', 'cancelled', message)
  return {'CANCELLED'}
end
-- Again: it is on its way, or was delivered. Nothing is begun anew.
if not r[4] then
  redis.call('HSET', task, 'cancel', '1')
  touch(task)
  -- An intent waits for its submitter, or for its recovery: only then is there something to cancel.
  if r[2] ~= 'intended' then wanted_now(task, due, task_id) end
end
return {'REQUESTED', int(redis.call('ZCOUNT', trackers, int(now), '+inf'))}
