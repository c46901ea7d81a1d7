-- Put before every script, and before prelude.lua: the clock, and the indexes that tasks are found by.

local clock = redis.call('TIME')
-- Milliseconds by the store's own clock: the only clock that counts.
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- The task that this script has ended, if it has: its tool (or server), status, reason, and its age in ms.
local ended

-- The script's reply, which tells of the end besides: whoever measures hears of each exactly once.
local function told(reply)
  if ended then reply[#reply + 1], reply[#reply + 2] = 'ended', ended end
  return reply
end

-- Lua would print a large number as 1.7e+12.
local function int(n) return string.format('%.0f', n) end

-- A member enters a fleet-wide index, and the index lives at least as long as the member's task. An index that holds an
-- unlimited task (gone == '') has no expiry; a fresh one gets one.
local function index_add(index, score, member, gone)
  redis.call('ZADD', index, int(score), member)
  if gone == '' then
    redis.call('PERSIST', index)
    return
  end
  local left = redis.call('PTTL', index)
  if left >= 0 and now + left < tonumber(gone) or left < 0 and redis.call('ZCARD', index) == 1 then
    -- A little longer, or every task would move it again.
    redis.call('PEXPIREAT', index, int(tonumber(gone) + (tonumber(gone) - now) / 16))
  end
end

-- Every task stands in three lists, the fleet's, its owner's and its tool's, each of them in the order of creation and
-- split by where its tasks are. Which lists follows from the task, so no header can name them; they stand below the
-- prefix of all keys.
local ENDS = {'completed', 'failed', 'cancelled'}

local function without(key, tail) return string.sub(key, 1, -(#tail + 1)) end
local function prefix_of(task, task_id) return without(task, 'task:{' .. task_id .. '}') end

-- The task's entry in the index of ids: id, digest of its owner, tool. Nil: the index has no such task.
local function entry_of(prefix, task_id)
  return redis.call('ZRANGE', prefix .. 'ids', '[' .. task_id .. ' ', '(' .. task_id .. '!', 'BYLEX', 'LIMIT', 0, 1)[1]
end

-- The names of the task's lists. Each is a key with `active` or a terminal status behind it.
local function lists_of(prefix, entry)
  local owner, tool = string.match(entry, '^%S+ (%S+) (.*)$')
  return {prefix .. 'list:', prefix .. 'list:owner:' .. owner .. ':', prefix .. 'list:tool:' .. tool .. ':'}
end

-- The task stands in its lists, and the indexes know when to forget it.
local function list_task(prefix, entry, task_id, where, created, gone)
  index_add(prefix .. 'ids', 0, entry, gone)
  index_add(prefix .. 'drops', gone == '' and 9e15 or tonumber(gone), task_id, gone)
  for _, list in ipairs(lists_of(prefix, entry)) do index_add(list .. where, created, task_id, gone) end
end

-- Nothing is left of the task in any list.
local function forget_task(prefix, task_id)
  local entry = entry_of(prefix, task_id)
  redis.call('ZREM', prefix .. 'drops', task_id)
  if not entry then return end
  redis.call('ZREM', prefix .. 'ids', entry)
  for _, list in ipairs(lists_of(prefix, entry)) do
    for _, where in ipairs({'active', unpack(ENDS)}) do redis.call('ZREM', list .. where, task_id) end
  end
end

-- Nothing is left of so many tasks whose keys Redis has dropped. Returns how many there were.
local function forget_dropped(prefix, batch)
  local dropped = redis.call('ZRANGE', prefix .. 'drops', '-inf', '(' .. int(now), 'BYSCORE', 'LIMIT', 0, batch)
  for _, task_id in ipairs(dropped) do forget_task(prefix, task_id) end
  return #dropped
end

-- Bytewise, as a sorted set compares its members: Lua's own < asks the server's locale.
local function greater(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return #a > #b
end

-- Stands at the newest task of a list that comes after the place, and loads those behind it as they are wanted.
-- `head` tells the task where it stands, nil at the end; `at` is moved on by who has taken it.
local function reader(key, after_ms, after_id)
  local chunk_size = 50
  local self, chunk, rank, last = {at = 1}, {}, 0, false
  -- Several tasks may be of the same millisecond: they are passed over one by one.
  if after_ms ~= '' then rank = redis.call('ZCOUNT', key, '(' .. after_ms, '+inf') end
  function self.head()
    while true do
      if self.at > #chunk then
        if last then return nil end
        chunk = redis.call('ZRANGE', key, rank, rank + chunk_size - 1, 'REV', 'WITHSCORES')
        rank, self.at, last = rank + chunk_size, 1, #chunk < 2 * chunk_size
        if #chunk == 0 then return nil end
      end
      local id, created = chunk[self.at], tonumber(chunk[self.at + 1])
      if after_ms == '' or created < tonumber(after_ms) or greater(after_id, id) then return id, created end
      self.at = self.at + 2
    end
  end
  return self
end

-- Of the readers of one list's parts, the one that stands at the newest task, and that task.
local function newest_of(readers)
  local best, best_id, best_ms
  for _, one in pairs(readers) do
    local id, created = one.head()
    if id and (not best or created > best_ms or created == best_ms and greater(id, best_id)) then
      best, best_id, best_ms = one, id, created
    end
  end
  return best, best_id, best_ms
end
