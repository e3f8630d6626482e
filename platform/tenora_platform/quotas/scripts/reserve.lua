-- Checks every limit of a request, then takes from all of them, or from none.
--
-- call: request_id, mode ("take" | "check" | "adopt"), lease_ms, run_id, output, cost,
--   charges: list of {kind, unit, field, stem, value, capacity, amount, wait_ms}, one per limit.
-- "check" takes nothing. "adopt" takes without checking: it restores a reservation that Redis lost.
-- reply: status ("admitted" | "refused" | "cold" | "ended"), output, states (one per charge),
--   binding and cold (indices of charges from 0), sweeping (nothing was decided: call again).
local SWEEP = 200 -- dead leases, and forgettable fields, handled by one call

-- Dead leases give back money and concurrency. What they charged to rates drains by itself.
local function expire_leases()
  local dead = redis.call("ZRANGEBYSCORE", LEASES, "-inf", integer(now_ms), "LIMIT", 0, SWEEP)
  for _, id in ipairs(dead) do
    local reservation = load_reservation(id)
    if reservation then
      stop_running(id, reservation)
      hold_cost(reservation, 0)
      reservation.state = "expired"
      save_reservation(id, reservation)
      forget_when_done(id, reservation)
    else
      redis.call("ZREM", LEASES, id)
    end
  end
  return #dead == SWEEP
end

local forget = {}

function forget.rate(field)
  local _, at_ms = stored_debt(field)
  if now_ms - at_ms < RATE_IDLE_MS then return forget_later("rate:" .. field, RATE_IDLE_MS) end
  redis.call("HDEL", RATES, field)
end

function forget.committed(field)
  redis.call("HDEL", COMMITTED, field)
end

-- A settled hold that no projection ever covered leaves together with the committed values, which
-- are then read from the ledger again: the ledger has had an hour to record it.
function forget.reservation(id)
  local reservation = load_reservation(id)
  if not reservation or reservation.state == "live" then return end
  for field in pairs(reservation.budgets) do
    if reservation.cost > 0 then redis.call("HDEL", COMMITTED, field) end
  end
  hold_cost(reservation, 0)
  redis.call("HDEL", RESERVATIONS, id)
end

local function forget_idle()
  local due = redis.call("ZRANGEBYSCORE", FORGET, "-inf", integer(now_ms), "LIMIT", 0, SWEEP)
  for _, member in ipairs(due) do
    redis.call("ZREM", FORGET, member)
    local kind, rest = string.match(member, "^(%a+):(.*)$")
    forget[kind](rest)
  end
end

local inspect = {}

function inspect.rate(charge)
  local debt, at_ms = drained_debt(charge.field, charge.value)
  local full = charge.capacity * MS_PER_MINUTE
  debt = math.min(debt, full) -- a lowered limit never locks for more than its own window
  local excess = debt + charge.amount * MS_PER_MINUTE - full
  local state = {fits = excess <= 0, debt = debt, at_ms = at_ms, wait_ms = 0}
  if charge.amount > charge.capacity then
    state.wait_ms = -1
  elseif excess > 0 then
    state.wait_ms = math.ceil(excess / charge.value)
  end
  return state
end

function inspect.concurrency(charge)
  local used = tonumber(redis.call("HGET", LIVE, charge.field) or 0)
  local fits = used + charge.amount <= charge.value
  local wait_ms = charge.amount > charge.value and -1 or charge.wait_ms
  return {fits = fits, used = used, wait_ms = fits and 0 or wait_ms}
end

function inspect.budget(charge)
  local committed = redis.call("HGET", COMMITTED, charge.field)
  if not committed then return {cold = true} end
  committed = tonumber(string.match(committed, "^%d+"))
  local held = tonumber(redis.call("HGET", HELD, charge.field) or 0)
  local fits = charge.amount <= charge.value - committed - held
  return {fits = fits, committed = committed, held = held, wait_ms = fits and 0 or charge.wait_ms}
end

local take = {}

function take.rate(charge, state)
  state.debt = state.debt + charge.amount * MS_PER_MINUTE
  save_debt(charge.field, state.debt, state.at_ms)
end

function take.concurrency(charge, state)
  state.used = state.used + charge.amount
  add(LIVE, charge.field, charge.amount)
end

function take.budget(charge, state)
  state.held = (state.held or 0) + charge.amount
  add(HELD, charge.field, charge.amount)
end

-- What the caller sees of a limit: used and remaining in the limit's own unit.
local function describe(charge, state)
  local seen = {
    used = state.used or 0, committed = state.committed or 0, held = state.held or 0,
    reset_ms = charge.wait_ms, wait_ms = state.wait_ms or 0
  }
  if charge.kind == "rate" then
    local full = charge.capacity * MS_PER_MINUTE
    seen.remaining = math.max(0, math.floor((full - state.debt) / MS_PER_MINUTE))
    seen.used = charge.capacity - seen.remaining
    seen.reset_ms = state.debt == 0 and 0 or math.ceil(state.debt / charge.value)
  elseif charge.kind == "budget" then
    seen.used = seen.committed + seen.held
    seen.remaining = math.max(0, charge.value - seen.committed - seen.held)
  else
    seen.remaining = math.max(0, charge.value - seen.used)
    seen.reset_ms = seen.used == 0 and 0 or charge.wait_ms
  end
  return seen
end

-- The binding limit is the one to wait for longest; -1 means that waiting never helps.
local function binding_limit(states)
  local binding
  for index, state in ipairs(states) do
    if not state.fits then
      local wait = state.wait_ms
      local longest = binding and states[binding].wait_ms
      if not binding or (longest ~= -1 and (wait == -1 or wait > longest)) then
        binding = index
      end
    end
  end
  return binding
end

local function record(states)
  local reservation = {
    state = "live", output = call.output, tokens = 0, requests = 0, cost = 0,
    rates = {}, live = {}, budgets = {}
  }
  for index, charge in ipairs(call.charges) do
    take[charge.kind](charge, states[index])
    if charge.kind == "rate" then
      reservation.rates[charge.field] = {unit = charge.unit, value = charge.value}
      reservation[charge.unit] = charge.amount
    elseif charge.kind == "concurrency" then
      table.insert(reservation.live, charge.field)
    else
      reservation.budgets[charge.field] = charge.stem
      reservation.cost = call.cost
    end
  end
  save_reservation(call.request_id, reservation)
  redis.call("ZADD", LEASES, integer(now_ms + call.lease_ms), call.request_id)
end

-- An expired reservation runs again; what it charged to rates was never given back.
local function revive(reservation)
  for _, scope in ipairs(reservation.live) do add(LIVE, scope, 1) end
  hold_cost(reservation, call.cost)
  reservation.state = "live"
  save_reservation(call.request_id, reservation)
  redis.call("ZADD", LEASES, integer(now_ms + call.lease_ms), call.request_id)
end

if expire_leases() then return answer({status = "refused", sweeping = true}) end
forget_idle()
distrust_other_servers()

local known = call.mode ~= "check" and load_reservation(call.request_id)
if known and known.state ~= "live" and not (call.mode == "adopt" and known.state == "expired") then
  return answer({status = "ended"})
end

local states, cold, refused = {}, {}, false
for index, charge in ipairs(call.charges) do
  states[index] = inspect[charge.kind](charge)
  if states[index].cold then table.insert(cold, index - 1) end
  if not states[index].fits then refused = true end
end

local is_live = known and known.state == "live"
if call.mode == "adopt" then
  if known then
    if not is_live then revive(known) end
  else
    record(states)
  end
  return answer({status = "admitted", output = call.output})
end
if #cold > 0 then return answer({status = "cold", cold = cold}) end

local reply = {status = "admitted", output = is_live and known.output or call.output, states = {}}
if refused and not is_live then
  reply.status = "refused"
  reply.binding = binding_limit(states) - 1
elseif call.mode == "take" and not is_live then
  record(states)
end
for index, charge in ipairs(call.charges) do
  if reply.status == "admitted" then states[index].wait_ms = 0 end
  reply.states[index] = describe(charge, states[index])
end
return answer(reply)
