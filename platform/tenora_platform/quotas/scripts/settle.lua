-- A reservation becomes what was really used. The first settlement counts, later ones change
-- nothing. One that ended without settlement (expired, released) is charged now.
--
-- call: request_id, tokens (prompt and completion), cost. reply: status.
local reservation = load_reservation(call.request_id)
if not reservation then return answer({status = "unknown"}) end
if reservation.state == "settled" then return answer({status = "settled"}) end

stop_running(call.request_id, reservation)
refund_rates(reservation, "tokens", reservation.tokens - call.tokens)
hold_cost(reservation, call.cost)
reservation.state = "settled"
reservation.tokens = call.tokens
save_reservation(call.request_id, reservation)
forget_when_done(call.request_id, reservation)
return answer({status = "settled"})
