-- Nothing is left in the indexes of so many tasks whose keys Redis has dropped. MORE: there may be others.
--
-- KEYS: ids
-- ARGV: batch
-- RETURNS: FORGOTTEN count | MORE count

local count = forget_dropped(without(ids, 'ids'), batch)
return {count < tonumber(batch) and 'FORGOTTEN' or 'MORE', int(count)}
