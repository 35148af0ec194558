"""Compiled steps of the world of M12: readings, grants, losses, boots, restarts, checkpoints and money, in seconds.

State of a run in three arrays: ``amounts`` (see `WORK` and below), ``counts`` (see `READING` and
below) and ``batches``, shape (2, room, 3): instances granted together, spot in row 0 and on-demand
in row 1, oldest first, each with its size, the time of its grant and the time it is up. A batch
that has joined the group has a negative size.
"""

from __future__ import annotations

import math

import numpy as np

from slackwater.optimization.kernels.compiling import kernel, part

#: Indices of ``amounts``: the time, work done, work saved by the last checkpoint, working seconds
#: since then, the time at which the group works again, the time it last formed, USD paid and
#: instance-seconds by kind, work lost, and the time of the finish (infinity: not finished).
NOW, WORK, SAVED, SINCE, WORKS_AT, FORMED_AT = 0, 1, 2, 3, 4, 5
PAID, SECONDS = 6, 8
LOST_WORK, FINISH, PRICE = 10, 11, 12
AMOUNTS = 13
#: Indices of ``counts``: the next reading, batches by kind, target by kind, available spot
#: instances, instances lost, and how often the group formed.
READING, BATCHES, TARGET = 0, 1, 3
AVAILABLE, LOST, FORMED = 5, 6, 7
COUNTS = 8
SPOT, ON_DEMAND = 0, 1
#: Columns of ``batches``.
SIZE, GRANTED, UP = 0, 1, 2
#: Indices of ``terms``: seconds to boot, to restart the group, between checkpoints (0: every moment
#: is one) and until on-demand is granted; whether a lost instance saves first; the on-demand price
#: in USD per hour; and the workload.
BOOT, RESTART, CHECKPOINT, WAIT, NOTICE, ON_DEMAND_USD, WORKLOAD = 0, 1, 2, 3, 4, 5, 6
TERMS = 7
HOUR = 3600.0
#: Seconds by which a checkpoint may be early: sums of seconds carry rounding errors.
MOMENT = 1e-9


@part
def requested(counts: np.ndarray, batches: np.ndarray, kind: int) -> int:
    """Return the instances of a kind that are held or requested and not yet granted."""
    total = 0.0
    for b in range(counts[BATCHES + kind]):
        total += abs(batches[kind, b, SIZE])
    return int(total)


@part
def members(counts: np.ndarray, batches: np.ndarray) -> int:
    """Return the instances of the group."""
    total = 0.0
    for kind in range(2):
        for b in range(counts[BATCHES + kind]):
            if batches[kind, b, SIZE] < 0.0:
                total -= batches[kind, b, SIZE]
    return int(total)


@part
def drop(counts: np.ndarray, batches: np.ndarray, kind: int, over: int) -> bool:
    """Remove the newest ``over`` instances of a kind; return whether the group lost a member."""
    left, joined = float(over), False
    while left > 0.0:
        b = counts[BATCHES + kind] - 1
        size = batches[kind, b, SIZE]
        taken = min(left, abs(size))
        joined = joined or size < 0.0
        left -= taken
        if taken == abs(size):
            counts[BATCHES + kind] -= 1
        else:
            batches[kind, b, SIZE] = size + taken if size < 0.0 else size - taken
    return joined


@part
def grant(amounts: np.ndarray, counts: np.ndarray, batches: np.ndarray, terms: np.ndarray, kind: int) -> None:
    """Request the instances of a kind that the target lacks; spot up to the available instances."""
    wanted = counts[TARGET + kind]
    if kind == SPOT:
        wanted = min(wanted, counts[AVAILABLE])
    lacking = wanted - requested(counts, batches, kind)
    if lacking <= 0:
        return
    b = counts[BATCHES + kind]
    granted = amounts[NOW] + (terms[WAIT] if kind == ON_DEMAND else 0.0)
    batches[kind, b, SIZE] = lacking
    batches[kind, b, GRANTED] = granted
    batches[kind, b, UP] = granted + terms[BOOT]
    counts[BATCHES + kind] += 1


@part
def join(amounts: np.ndarray, counts: np.ndarray, batches: np.ndarray) -> bool:
    """Let the instances that are up join the group; return whether any joined."""
    joined = False
    for kind in range(2):
        for b in range(counts[BATCHES + kind]):
            if batches[kind, b, SIZE] > 0.0 and batches[kind, b, UP] <= amounts[NOW]:
                batches[kind, b, SIZE] = -batches[kind, b, SIZE]
                joined = True
    return joined


@part
def form(amounts: np.ndarray, counts: np.ndarray, batches: np.ndarray, terms: np.ndarray, lost: bool) -> None:
    """Form the group anew: from the last checkpoint after a loss, else with the work saved (M12.4)."""
    if lost and terms[NOTICE] == 0.0:
        amounts[LOST_WORK] += amounts[WORK] - amounts[SAVED]
        amounts[WORK] = amounts[SAVED]
    else:
        amounts[SAVED] = amounts[WORK]
    amounts[SINCE] = 0.0
    before = amounts[FORMED_AT] == amounts[NOW]
    exists = members(counts, batches) > 0
    if exists and not before:
        counts[FORMED] += 1
    elif before and not exists:
        counts[FORMED] -= 1
    amounts[FORMED_AT] = amounts[NOW] if exists else -1.0
    amounts[WORKS_AT] = amounts[NOW] + terms[RESTART]


@part
def read(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    available: np.ndarray,
    price: np.ndarray,
    terms: np.ndarray,
) -> None:
    """Apply the next reading: losses, newest instances first, then grants."""
    counts[AVAILABLE] = available[counts[READING]]
    amounts[PRICE] = price[counts[READING]]
    counts[READING] += 1
    over = requested(counts, batches, SPOT) - counts[AVAILABLE]
    if over > 0:
        counts[LOST] += over
        if drop(counts, batches, SPOT, over):
            form(amounts, counts, batches, terms, True)
    grant(amounts, counts, batches, terms, SPOT)


@part
def next_event(
    amounts: np.ndarray, counts: np.ndarray, batches: np.ndarray, times: np.ndarray, until: float
) -> float:
    """Return the time of the next reading, grant or join, at most ``until``."""
    then = until
    if counts[READING] < len(times):
        then = min(then, times[counts[READING]])
    for kind in range(2):
        for b in range(counts[BATCHES + kind]):
            if batches[kind, b, SIZE] > 0.0:
                if batches[kind, b, GRANTED] > amounts[NOW]:
                    then = min(then, batches[kind, b, GRANTED])
                then = min(then, batches[kind, b, UP])
    return then


@part
def work_until(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    then: float,
) -> None:
    """Work and pay up to ``then``, or up to the finish if that is earlier."""
    rate = rates[min(members(counts, batches), len(rates) - 1)] / HOUR
    begin = max(amounts[NOW], amounts[WORKS_AT])
    if rate > 0.0 and then > begin:
        rest = terms[WORKLOAD] - amounts[WORK]
        if rate * (then - begin) >= rest:
            then = begin + max(0.0, rest) / rate
            amounts[FINISH] = then
        length = then - begin
        amounts[WORK] += rate * length
        if terms[CHECKPOINT] == 0.0:
            amounts[SAVED] = amounts[WORK]
        else:
            since = amounts[SINCE] + length
            passed = math.floor(since / terms[CHECKPOINT] + MOMENT)
            amounts[SINCE] = max(0.0, since - passed * terms[CHECKPOINT])
            if passed > 0:
                amounts[SAVED] = amounts[WORK] - rate * amounts[SINCE]
    span = then - amounts[NOW]
    for kind in range(2):
        held = 0.0
        for b in range(counts[BATCHES + kind]):
            if batches[kind, b, GRANTED] <= amounts[NOW]:
                held += abs(batches[kind, b, SIZE])
        usd = amounts[PRICE] if kind == SPOT else terms[ON_DEMAND_USD]
        amounts[PAID + kind] += held * span * usd / HOUR
        amounts[SECONDS + kind] += held * span
    amounts[NOW] = then


@kernel
def advance(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    times: np.ndarray,
    available: np.ndarray,
    price: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    until: float,
) -> None:
    """Let time pass up to ``until``, with the readings and joins of that second, or up to the finish.

    ``times`` (seconds, ascending), ``available`` and ``price`` (USD per hour) are the readings,
    shape (readings,); ``rates`` is H(0..n_max) in work units per hour, 0 below n_min.
    """
    while True:
        work_until(amounts, counts, batches, rates, terms, next_event(amounts, counts, batches, times, until))
        if amounts[FINISH] < math.inf:
            return
        while counts[READING] < len(times) and times[counts[READING]] <= amounts[NOW]:
            read(amounts, counts, batches, available, price, terms)
        if join(amounts, counts, batches):
            form(amounts, counts, batches, terms, False)
        if amounts[NOW] >= until:
            return


@kernel
def aim(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    terms: np.ndarray,
    on_demand: int,
    spot: int,
) -> None:
    """Change the target: end the newest instances above it, and request those that it lacks."""
    counts[TARGET + ON_DEMAND] = on_demand
    counts[TARGET + SPOT] = spot
    changed = False
    for kind in range(2):
        over = requested(counts, batches, kind) - counts[TARGET + kind]
        if over > 0:
            changed = drop(counts, batches, kind, over) or changed
    grant(amounts, counts, batches, terms, ON_DEMAND)
    grant(amounts, counts, batches, terms, SPOT)
    changed = join(amounts, counts, batches) or changed
    if changed:
        form(amounts, counts, batches, terms, False)


# ---
# The exact guard (M12.7).


@part
def fastest(rates: np.ndarray) -> int:
    """Return the least number of instances with the highest rate."""
    best = 0
    for n in range(len(rates)):
        if rates[n] > rates[best]:
            best = n
    return best


@part
def on_demand_ready(
    amounts: np.ndarray, counts: np.ndarray, batches: np.ndarray, terms: np.ndarray, wanted: int
) -> tuple[float, bool]:
    """Return when ``wanted`` on-demand instances are up, if requested now, and whether that changes their group."""
    ready, left, changed = amounts[NOW], wanted, False
    for b in range(counts[BATCHES + ON_DEMAND]):
        size = batches[ON_DEMAND, b, SIZE]
        taken = min(left, int(abs(size)))
        left -= taken
        if size > 0.0 and taken > 0:
            ready, changed = max(ready, batches[ON_DEMAND, b, UP]), True
        elif size < 0.0 and taken < -size:
            changed = True  # members end
    if left > 0:
        ready, changed = max(ready, amounts[NOW] + terms[WAIT] + terms[BOOT]), True
    for b in range(counts[BATCHES + SPOT]):
        changed = changed or batches[SPOT, b, SIZE] < 0.0  # spot members end
    return ready, changed


@part
def is_safe(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    on_demand: int,
    spot: int,
    next_at: float,
    deadline: float,
) -> bool:
    """Return whether a target held until ``next_at`` leaves the deadline in reach, whatever happens to spot.

    With spot in the target no work beyond the saved work is relied on, as a loss may come in any
    second, that of the next decision included, and restarts the group.
    """
    best = fastest(rates)
    anew = next_at + terms[WAIT] + terms[BOOT] + terms[RESTART]  # on-demand requested at the next decision
    rest = terms[WORKLOAD] - amounts[WORK]
    ready, changed = on_demand_ready(amounts, counts, batches, terms, on_demand)
    if spot > 0:
        if terms[NOTICE] == 0.0:
            rest = terms[WORKLOAD] - amounts[SAVED]
        stays = max(next_at, ready) + terms[RESTART]
        if rates[on_demand] > 0.0 and stays + rest / rates[on_demand] * HOUR <= deadline:
            return True
        return bool(anew + rest / rates[best] * HOUR <= deadline)
    if rates[on_demand] > 0.0:
        works_at = ready + terms[RESTART] if changed else max(amounts[NOW], amounts[WORKS_AT])
        if works_at + rest / rates[on_demand] * HOUR <= deadline:
            return True
        rest -= rates[on_demand] * max(0.0, next_at - works_at) / HOUR
    return bool(anew + rest / rates[best] * HOUR <= deadline)


@kernel
def guarded(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    on_demand: int,
    spot: int,
    next_at: float,
    deadline: float,
) -> tuple[int, int]:
    """Return the wished target if it is safe, else the safe one with the least more on-demand, with spot before without.

    If no more on-demand is safe, the safe target with less: a start that saves the restart of a
    larger group. If none is safe, the fastest number of on-demand instances.
    """
    n_max = len(rates) - 1
    for o in range(on_demand, n_max + 1):
        for s in (min(spot, n_max - o), 0):
            works = o + s == 0 or rates[o + s] > 0.0
            if works and is_safe(amounts, counts, batches, rates, terms, o, s, next_at, deadline):
                return o, s
    for o in range(on_demand - 1, 0, -1):
        if rates[o] > 0.0 and is_safe(amounts, counts, batches, rates, terms, o, 0, next_at, deadline):
            return o, 0
    return fastest(rates), 0


@kernel
def follow(
    amounts: np.ndarray,
    counts: np.ndarray,
    batches: np.ndarray,
    times: np.ndarray,
    available: np.ndarray,
    price: np.ndarray,
    rates: np.ndarray,
    terms: np.ndarray,
    on_demand: int,
    spot: int,
    until: float,
    deadline: float,
) -> tuple[int, int, int, int, float, float, float]:
    """Aim at the guarded wish and let time pass to the next decision at ``until``.

    Return the target (on-demand, spot) and, at ``until``, the instances that are held or requested,
    the available instances, the price, the work done and the USD paid. An infinite ``deadline`` is
    not guarded.
    """
    if deadline < math.inf:
        on_demand, spot = guarded(amounts, counts, batches, rates, terms, on_demand, spot, until, deadline)
    aim(amounts, counts, batches, terms, on_demand, spot)
    advance(amounts, counts, batches, times, available, price, rates, terms, until)
    held = requested(counts, batches, SPOT) + requested(counts, batches, ON_DEMAND)
    paid = amounts[PAID + SPOT] + amounts[PAID + ON_DEMAND]
    return on_demand, spot, held, counts[AVAILABLE], amounts[PRICE], amounts[WORK], paid
