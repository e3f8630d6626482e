-- Nothing ran: tokens, money, concurrency and the request itself are given back.
-- An expired reservation still gives back its tokens; a settled one stays as it is.
--
-- call: request_id. reply: status.
local reservation = load_reservation(call.request_id)
if not reservation then return answer({status = "unknown"}) end
if reservation.state == "settled" then return answer({status = "settled"}) end

stop_running(call.request_id, reservation)
refund_rates(reservation, "tokens", reservation.tokens)
refund_rates(reservation, "requests", reservation.requests)
hold_cost(reservation, 0)
reservation.state = "released"
reservation.tokens = 0
reservation.requests = 0
save_reservation(call.request_id, reservation)
forget_when_done(call.request_id, reservation)
return answer({status = "released"})
