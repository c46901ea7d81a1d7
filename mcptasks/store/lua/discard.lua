-- The folders that are done with are forgotten, and this worker has some others whose tasks are gone. What it does not
-- say it is done with is given out again.
--
-- KEYS: artifacts
-- ARGV: task_prefix, again_ms, batch, done...
-- RETURNS: DISCARD ids

for _, id in ipairs(done) do redis.call('ZREM', artifacts, id) end
local reply = {'DISCARD'}
for _, id in ipairs(redis.call('ZRANGE', artifacts, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, batch)) do
  local gone = redis.call('HGET', task_prefix .. '{' .. id .. '}', 'gone')
  if gone and (gone == '' or tonumber(gone) > now) then
    -- Its end was moved by somebody who did not know of its files.
    keep_files(artifacts, id, gone)
  else
    redis.call('ZADD', artifacts, 'XX', int(now + tonumber(again_ms)), id)
    reply[#reply + 1] = id
  end
end
return reply
