-- This worker is the fleet's one sweeper for a while, and has the ids that are overdue.
--
-- KEYS: sweeper, unsent, leases, expiry
-- ARGV: me, term_ms, batch
-- RETURNS: BUSY | SWEEP ids

local holder = redis.call('GET', sweeper)
if holder and holder ~= me then return {'BUSY'} end
redis.call('SET', sweeper, me, 'PX', term_ms)
local reply, seen = {'SWEEP'}, {}
for _, index in ipairs({leases, expiry, unsent}) do
  for _, id in ipairs(redis.call('ZRANGE', index, '-inf', int(now), 'BYSCORE', 'LIMIT', 0, batch)) do
    if not seen[id] then
      seen[id] = true
      reply[#reply + 1] = id
    end
  end
end
return reply
