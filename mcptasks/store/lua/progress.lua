-- The client sees this progress, if the run still holds its token.
--
-- KEYS: task
-- ARGV: token, message, progress, total
-- RETURNS: SAVED | SAME | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
local r = redis.call('HMGET', task, 'msg', 'progress')
redis.call('HSET', task, 'msg', message, 'progress', progress, 'total', total)
touch(task, r[1] ~= message, ' progress')
return {r[1] == message and r[2] == progress and 'SAME' or 'SAVED'}
