-- The leases of all these runs are extended, and each run learns what happened to it meanwhile.
--
-- KEYS: leases, tasks...
-- ARGV: lease_ms, runs...
-- RETURNS: RENEWED news_per_run

local news = {'RENEWED'}
for i, task in ipairs(tasks) do
  local task_id, token = runs[2 * i - 1], runs[2 * i]
  if refused(task, token) then
    news[#news + 1] = 'LOST'
  else
    local r = redis.call('HMGET', task, 'cancel', 'status', 'gone')
    index_add(leases, now + tonumber(lease_ms), task_id, r[3])
    news[#news + 1] = r[1] == '1' and 'CANCEL' or r[2] == 'running' and 'RUNNING' or 'WAITING'
  end
end
return news
