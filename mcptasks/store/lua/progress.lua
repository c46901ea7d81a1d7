-- The client sees this progress, if the run still holds its token.
--
-- KEYS: task
-- ARGV: token, message, progress, total, rate
-- RETURNS: SAVED | SAME | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
local r = redis.call('HMGET', task, 'msg', 'progress', 'total', 'rate')
if r[1] == message and r[2] == progress and r[3] == total and (r[4] or '') == rate then return {'SAME'} end
redis.call('HSET', task, 'msg', message, 'progress', progress, 'total', total, 'progressed', int(now))
if rate == '' then redis.call('HDEL', task, 'rate') else redis.call('HSET', task, 'rate', rate) end
touch(task, true, ' progress')
return {'SAVED'}
