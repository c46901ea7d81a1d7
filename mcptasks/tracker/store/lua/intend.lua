-- The intent to submit is stored, before the call goes out; it is its submitter's alone for a lease.
--
-- KEYS: task, due
-- ARGV: task_id, nonce, owner, owner_digest, server, tool, key, arguments, consumers, lease_ms, ttl_ms, live_ms,
--   digests...
-- RETURNS: INTENDED | EXISTS | CONFLICT | NEWER schema
--
-- digests: of what is submitted, the one to store and behind it all that may have been stored for it

local r = redis.call('HMGET', task, 'v', 'nonce', 'digest')
if r[1] then
  if too_new(r[1]) then return {'NEWER', r[1]} end
  -- Our own client, sending once more what it saw no answer to.
  if r[2] == nonce then return {'INTENDED'} end
  for _, digest in ipairs(digests) do
    if digest == r[3] then return {'EXISTS'} end
  end
  return {'CONFLICT'}
end
local gone = now + tonumber(live_ms)
redis.call('HSET', task, 'v', SCHEMA, 'id', task_id, 'nonce', nonce, 'digest', digests[1], 'owner', owner,
  'owner_digest', owner_digest, 'server', server, 'tool', tool, 'key', key, 'args', arguments, 'consumers', consumers,
  'status', 'intended', 'created', int(now), 'updated', int(now), 'rev', '1', 'token', '0', 'failures', '0',
  'polls', '0', 'ttl', ttl_ms, 'live', live_ms, 'lease', int(now + tonumber(lease_ms)))
keep(task, task_id, 'active', gone)
index_add(due, now + tonumber(lease_ms), task_id, int(gone))
return {'INTENDED'}
