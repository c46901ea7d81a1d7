-- The client sees this progress, if the run still holds its token.
--
-- KEYS: task
-- ARGV: token, message, progress, total, rate, noted, reports, said...
-- RETURNS: SAVED | SAME | STALE | TERMINAL | GONE
--
-- noted: the message for the timeline; reports: how many the tool made since the last; said: as of note_said, what the tool said before this progress

local no = refused(task, token)
if no then return {no} end
note_said(task, said)
local r = redis.call('HMGET', task, 'msg', 'progress', 'total', 'rate')
if r[1] == message and r[2] == progress and r[3] == total and (r[4] or '') == rate then return {'SAME'} end
redis.call('HSET', task, 'msg', message, 'progress', progress, 'total', total, 'progressed', int(now))
if rate == '' then redis.call('HDEL', task, 'rate') else redis.call('HSET', task, 'rate', rate) end
-- Reports that follow one another are one entry: from when, how many, until when, from what, to what, of what.
local last = redis.call('LINDEX', timeline_of(task), -1) or ''
local began, count, first = string.match(last, '^(%d+) progress (%d+) %d+ (%S+) ')
local told = {progress, total == '' and '-' or total, noted}
if began then
  last = table.concat({began, 'progress', int(count + reports), int(now), first, unpack(told)}, ' ')
  redis.call('LSET', timeline_of(task), -1, last)
else
  note(task, 'progress', reports, int(now), progress, unpack(told))
end
touch(task, true, ' progress')
return {'SAVED'}
