-- The leases of all these runs are extended, and each run learns what happened to it meanwhile. A run over its hard
-- limit keeps the lease it has and no more: nothing in its process could end it, so the sweeper will.
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
    local r = redis.call('HMGET', task, 'cancel', 'status', 'gone', 'deadline')
    local over = r[2] == 'running' and r[4] and r[4] ~= '' and tonumber(r[4]) <= now
    if not over then index_add(leases, now + tonumber(lease_ms), task_id, r[3]) end
    news[#news + 1] = r[1] == '1' and 'CANCEL' or r[2] == 'running' and 'RUNNING' or 'WAITING'
  end
end
return news
