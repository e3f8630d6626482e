-- Extends the leases of running reservations and names those that are no longer held.
--
-- call: request_ids, lease_ms. reply: status, lost (ids that are unknown or expired).
local lost = {}
for _, id in ipairs(call.request_ids) do
  local reservation = load_reservation(id)
  if not reservation or reservation.state == "expired" then
    table.insert(lost, id)
  elseif reservation.state == "live" then
    redis.call("ZADD", LEASES, "XX", integer(now_ms + call.lease_ms), id)
  end
end
return answer({status = "renewed", lost = lost})
