-- The task as it is now, and what it ended with, for its owner or the operator; nothing is written.
--
-- KEYS: task, result
-- ARGV: owner, operator
-- RETURNS: FOUND fields payload | GONE

local found = redis.call('HGET', task, 'owner')
if not found or (operator ~= '1' and found ~= owner) then return {'GONE'} end
return {'FOUND', redis.call('HGETALL', task), redis.call('GET', result) or ''}
