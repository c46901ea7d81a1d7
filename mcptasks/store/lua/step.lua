-- The step's result is recorded for every later run, if this run still holds its token and was the first to record it.
--
-- KEYS: task, journal
-- ARGV: token, name, value, said
-- RETURNS: RECORDED | KNOWN value | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
if redis.call('HSETNX', journal, 's:' .. name, value) == 0 then
  return {'KNOWN', redis.call('HGET', journal, 's:' .. name)}
end
expire_with_task(task, journal)
note(task, 'step', said)
touch(task, false)
return {'RECORDED'}
