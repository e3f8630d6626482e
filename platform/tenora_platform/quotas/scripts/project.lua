-- Sets a budget's committed amount if `seq` is newer, and drops the holds that the ledger covers.
-- An older projection still drops its holds: the newer amount contains them. Also seeds (no holds).
--
-- call: run_id, field, stem, committed, seq, covered (request ids). reply: status.
distrust_other_servers()
local stored = redis.call("HGET", COMMITTED, call.field)
local stored_seq = stored and tonumber(string.match(stored, " (%d+)$"))
if not stored_seq or call.seq > stored_seq then
  redis.call("HSET", COMMITTED, call.field, integer(call.committed) .. " " .. integer(call.seq))
  forget_later("committed:" .. call.field, COMMITTED_IDLE_MS)
end

-- A request is booked into the period it completed in, which may follow the one that it was
-- reserved in: its holds on this scope end in either.
for _, id in ipairs(call.covered) do
  local reservation = load_reservation(id)
  if reservation then
    for field, stem in pairs(reservation.budgets) do
      if stem == call.stem then
        add(HELD, field, -reservation.cost)
        reservation.budgets[field] = nil
      end
    end
    save_reservation(id, reservation)
    if reservation.state == "settled" then forget_when_done(id, reservation) end
  end
end
return answer({status = "projected"})
