-- Shared by all quota scripts: keys, clock, the reservation record and how holds end.
--
-- A script receives one msgpack map as ARGV[1] and answers with one msgpack map. Every number is
-- an integer below 2^53. A reservation is a record
--   state    live | settled | released | expired
--   output   output tokens it may use
--   tokens   tokens that it has charged to `rates` of unit "tokens"
--   requests requests that it has charged to `rates` of unit "requests"
--   cost     nano-USD that it holds in each of `budgets`
--   rates    field -> {unit, value of the limit when it was reserved}
--   live     list of scopes where it counts as running
--   budgets  field -> stem (field without the period's name); a covered budget is removed
local RATES, LIVE, COMMITTED, HELD, RESERVATIONS, LEASES, FORGET =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]

local MS_PER_MINUTE = 60000
local RATE_IDLE_MS = 10 * MS_PER_MINUTE -- a bucket drains in one minute; then its field may go
local COVERED_MS = 10 * MS_PER_MINUTE -- how long a finished reservation still answers duplicates
local UNCOVERED_MS = 60 * MS_PER_MINUTE -- how long a settled hold waits for its projection
local COMMITTED_IDLE_MS = 48 * 60 * MS_PER_MINUTE -- an unprojected value is read anew after this

local call = cmsgpack.unpack(ARGV[1])

-- Redis's own clock; a simulation passes its own time instead, production never does.
local function clock_ms()
  if call.now_ms > 0 then return call.now_ms end
  local time = redis.call("TIME")
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end
local now_ms = clock_ms()

-- Every script ends here. A tenant that is idle for two days costs no memory.
local function answer(reply)
  for _, key in ipairs(KEYS) do redis.call("PEXPIRE", key, COMMITTED_IDLE_MS) end
  return cmsgpack.pack(reply)
end

local function integer(number) return string.format("%.0f", number) end

local function load_reservation(id)
  local packed = redis.call("HGET", RESERVATIONS, id)
  return packed and cmsgpack.unpack(packed)
end

local function save_reservation(id, reservation)
  redis.call("HSET", RESERVATIONS, id, cmsgpack.pack(reservation))
end

local function forget_later(member, after_ms)
  redis.call("ZADD", FORGET, integer(now_ms + after_ms), member)
end

-- A field of a counter hash changes by `amount` and disappears at zero; it is never negative.
local function add(key, field, amount)
  if amount == 0 then return end
  if redis.call("HINCRBY", key, field, integer(amount)) <= 0 then
    redis.call("HDEL", key, field)
  end
end

-- GCRA in its leaky-bucket form. A field holds "debt at_ms": units x 60,000 still to drain, as of
-- at_ms; `value` units a minute drain `value` of them each millisecond, so all of it is exact.
-- (The theoretical arrival time is at_ms + debt / value.)
local function stored_debt(field)
  local stored = redis.call("HGET", RATES, field)
  if not stored then return 0, now_ms end
  local debt, at_ms = string.match(stored, "^(%d+) (%d+)$")
  return tonumber(debt), tonumber(at_ms)
end

local function drained_debt(field, value)
  local debt, at_ms = stored_debt(field)
  return math.max(0, debt - value * math.max(0, now_ms - at_ms)), math.max(at_ms, now_ms)
end

local function save_debt(field, debt, at_ms)
  local text = integer(debt) .. " " .. integer(at_ms)
  if redis.call("HSET", RATES, field, text) == 1 then
    forget_later("rate:" .. field, RATE_IDLE_MS)
  end
end

-- Gives back `units` (or, when negative, charges more): TAT = max(now, TAT - delta).
local function refund_rates(reservation, unit, units)
  for field, rate in pairs(reservation.rates) do
    local debt, at_ms = drained_debt(field, rate.value)
    if rate.unit == unit and (debt > 0 or units < 0) then
      save_debt(field, math.max(0, debt - units * MS_PER_MINUTE), at_ms)
    end
  end
end

-- The reservation's hold becomes `cost` in every budget whose projection does not cover it yet.
local function hold_cost(reservation, cost)
  for field in pairs(reservation.budgets) do
    add(HELD, field, cost - reservation.cost)
  end
  reservation.cost = cost
end

-- A live reservation stops running; its rates and money are the caller's to settle.
local function stop_running(id, reservation)
  redis.call("ZREM", LEASES, id)
  if reservation.state ~= "live" then return end
  for _, scope in ipairs(reservation.live) do add(LIVE, scope, -1) end
end

local function forget_when_done(id, reservation)
  local waits = reservation.state ~= "settled" or next(reservation.budgets) ~= nil
  forget_later("reservation:" .. id, waits and UNCOVERED_MS or COVERED_MS)
end

-- Committed values are trusted only from the server that received them: after a restart from an
-- old snapshot, or a failover, all of them are read from the ledger again.
local function distrust_other_servers()
  if redis.call("HGET", COMMITTED, "run_id") ~= call.run_id then
    redis.call("DEL", COMMITTED)
    redis.call("HSET", COMMITTED, "run_id", call.run_id)
  end
end
