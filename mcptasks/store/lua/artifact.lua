-- The written file is the task's artifact of this name, if the run still holds its token. Same name, same digest: the
-- file of before stands. Same name, another digest: it replaces that file, which nothing refers to any more.
--
-- KEYS: task, files
-- ARGV: token, digest, size, file, said, noted, total_max, count_max, names...
-- RETURNS: RECORDED old_file | KNOWN file | TOO_MANY count | TOO_LARGE total | STALE | TERMINAL | GONE
--
-- names: what the artifact's name may stand as, first what it is to stand as; said: what a person can read of it;
-- noted: its name for the timeline, empty for what does not stand there

local no = refused(task, token)
if no then return {no} end
local mine = {}
for _, one in ipairs(names) do mine[one] = true end
local stands, old_file, total, count = nil, '', tonumber(size), 1
local all = redis.call('HGETALL', files)
for i = 1, #all, 2 do
  local old_digest, old_size, old = string.match(all[i + 1], '^(%S+) (%d+) (%S+) ')
  if not mine[all[i]] then
    total, count = total + tonumber(old_size), count + 1
  else
    stands, old_file = all[i], old
    if old_digest == digest then file = old end
  end
end
local known = file == old_file
if not known then
  if count_max ~= '' and count > tonumber(count_max) then return {'TOO_MANY', int(count)} end
  if total_max ~= '' and total > tonumber(total_max) then return {'TOO_LARGE', int(total)} end
end
if stands and stands ~= names[1] then redis.call('HDEL', files, stands) end
redis.call('HSET', files, names[1], digest .. ' ' .. size .. ' ' .. file .. ' ' .. said)
expire_with_task(task, files)
if not known and noted ~= '' then note(task, 'artifact', size, noted) end
touch(task, false)
return {known and 'KNOWN' or 'RECORDED', old_file}
