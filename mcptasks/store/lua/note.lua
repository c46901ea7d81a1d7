-- What the tool said beside its work stands in the timeline, if the run still holds its token.
--
-- KEYS: task
-- ARGV: token, said...
-- RETURNS: NOTED | STALE | TERMINAL | GONE

local no = refused(task, token)
if no then return {no} end
note_said(task, said)
return {'NOTED'}
