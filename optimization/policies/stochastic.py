"""Value tables of a job on an uncertain market: what M4.6 decides by and what the end rule (c) of M3.3 reads (ours)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from optimization.job.definition import Job
from optimization.job.progress import needed
from optimization.job.termination import check_job
from optimization.job.throughput import rates
from optimization.kernels.induction import Asked, Game, chosen_size, chosen_sizes, induct
from optimization.kernels.rules import least_efficiency
from optimization.market.chains import MOST_STATES, Beliefs, CountChain, PriceChain, count_chain, price_chain
from optimization.market.window import Past
from optimization.policies.contract import Paths, View, on_path
from optimization.policies.narration import narrate
from optimization.policies.pace import (
    HOLD_NOTHING,
    WORK_TOLERANCE,
    deadline_in_reach,
    is_done,
    least_net,
    pace,
    slots_left,
    split,
    work_left,
)
from optimization.window.plan import Allocation, ExpectedToGo
from optimization.window.statement import sizes
from warehouse.errors import SettingsError

#: Points of the grid of work left: parts of one instance's slot while there are at most so many.
FINE_POINTS = 240
#: A grid of whole instance-slots is kept up to so many points.
MOST_POINTS = 600
#: Cells of one induction, over all slots: longer jobs get a coarser grid.
MOST_CELLS = 120_000_000
FEWEST_POINTS = 60
#: Points that the end rule's table is thinned to.
END_POINTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTables:
    """Expected values after each of the slots ``game.slot`` .. ``game.slot + len(after) - 1``, USD.

    ``after`` has shape (slots, S, K, M, points), as `kernels.induction.induct` gives it; ``counts`` and ``prices`` are
    the chains behind it, prices per slot. ``near`` (n,) is the grid's size that stands for each size the job may hold; ``key``
    is what their maker knows them by.
    """

    job: Job
    game: Game
    counts: CountChain
    prices: PriceChain
    after: np.ndarray
    all_sizes: np.ndarray
    all_gains: np.ndarray
    near: np.ndarray
    key: tuple[object, ...] = ()

    def size(self, *, slot: int, rest: float, before: int, available: int, price: float) -> int:
        """The size of most expected value in ``slot``, ``price`` in USD per instance-slot; of equal ones the least."""
        game = self.game
        column = self.after[slot - game.slot, self.counts.index(available), self.prices.index(price)]
        asked = Asked(
            float(rest),
            int(before),
            int(available),
            float(price),
            float(self.job.completion_value(slot + 1)),
        )
        return int(chosen_size(game, column, self.all_sizes, self.all_gains, self.near, asked))

    def sizes(
        self, *, slot: int, rest: np.ndarray, before: np.ndarray, available: np.ndarray, price: np.ndarray
    ) -> np.ndarray:
        """`size` of many paths in one slot, all of shape (paths,)."""
        columns, late = self.after[slot - self.game.slot], float(self.job.completion_value(slot + 1))
        return chosen_sizes(
            self.game, columns, self.all_sizes, self.all_gains, self.near, rest, before, available, price, late,
            self.counts.indices(available), self.prices.indices(price),
        )  # fmt: skip

    def to_go(self, *, slot: int, end: int, available: int, price: float) -> ExpectedToGo:
        """W of M3.3 (c) at the start of slot ``end`` > ``slot``: expected over the market of the slots between, seen from ``slot``.

        The tables must reach to slot ``end - 1``.
        """
        game = self.game
        states, levels = np.zeros(len(self.counts.count)), np.zeros(len(self.prices.level_usd))
        states[self.counts.index(available)] = 1.0
        levels[self.prices.index(price)] = 1.0
        for _ in range(end - 1 - slot):
            states, levels = states @ self.counts.transition, levels @ self.prices.transition
        points = np.unique(
            np.round(np.linspace(0, game.points - 1, min(game.points, END_POINTS))).astype(int)
        )
        # Thinned before it is averaged: a look ahead asks for thousands of these.
        thinned = self.after[end - 1 - game.slot][..., points[::-1]]
        table = np.tensordot(np.outer(states, levels), thinned, axes=2)
        work = self.job.workload - points[::-1] * game.step
        value = table[self.near].T
        # The tables are kept in single precision; rounding must not lift a value above the job's.
        value = np.minimum(np.maximum.accumulate(value, axis=0), self.job.value)
        return ExpectedToGo(work=work, value_usd=value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The slot that tables begin in: its number in the job, its length, and its prices in USD per instance-hour."""

    slot: int
    slot_hours: float
    price: float
    on_demand_usd: float


def make_tables(
    job: Job, past: Past, now: Moment, *, keep: int, beliefs: Beliefs, anywhere: bool = True
) -> ValueTables:
    """Backward induction from the deadline to ``now``, for every amount of work left, with chains estimated from ``past``.

    Without ``anywhere`` the amounts are those that a job begun at slot 0 can have left while on-demand still meets the deadline,
    and a slot's work more. ``keep`` slots from ``now`` on are kept.
    """
    slot, slot_hours = now.slot, now.slot_hours
    counts = count_chain(past, job.n_max, slot_hours=slot_hours, beliefs=beliefs)
    prices = price_chain(past, now.price, now.on_demand_usd, slot_hours=slot_hours, beliefs=beliefs).per_slot(
        slot_hours
    )
    slots = job.deadline_slots - slot
    held = sizes(job)
    chosen = held if len(held) <= MOST_STATES else _spread(held)
    hourly = rates(job.throughput, job.n_max)
    gain = hourly[chosen] * slot_hours
    cells = slots * len(counts.count) * len(prices.level_usd) * len(chosen)
    step, points = _grid(job, gain, most=max(FEWEST_POINTS, min(MOST_POINTS, MOST_CELLS // cells)))
    game = Game(
        sizes=chosen,
        gain=gain,
        available=counts.count.astype(np.int64),
        chain=np.broadcast_to(counts.transition, (slots, *counts.transition.shape)),
        price=prices.level_usd,
        price_chain=prices.transition,
        on_demand=float(now.on_demand_usd * slot_hours),
        restart=job.restart,
        value=job.worth,
        slot=slot,
        slack=job.workload - needed(job.workload),
        step=step,
        points=points,
    )
    return ValueTables(
        job=job,
        game=game,
        counts=counts,
        prices=prices,
        after=induct(game, min(keep, slots), None if anywhere else _band(job, game)),
        all_sizes=held,
        all_gains=hourly[held] * slot_hours,
        near=np.abs(chosen[None, :] - held[:, None]).argmin(axis=1),
    )


def _spread(held: np.ndarray) -> np.ndarray:
    """About `MOST_STATES` of the sizes, the ends among them."""
    places = np.round(np.linspace(1, len(held) - 1, MOST_STATES - 1)).astype(int)
    return np.concatenate([held[:1], held[np.unique(places)]])


def _band(job: Job, game: Game) -> tuple[np.ndarray, np.ndarray]:
    """The points (first, end) that matter at the start of each slot and at the deadline, shapes (T + 1,)."""
    most = float(game.gain.max()) / game.step
    begun = game.slot + np.arange(game.chain.shape[0] + 1)
    low = np.floor(job.workload / game.step - begun * most).astype(np.int64) - 1
    high = np.ceil((job.deadline_slots - begun + 1) * most).astype(np.int64) + 2
    high = np.minimum(high, game.points)
    return np.clip(low, 0, high - 2), high


def _grid(job: Job, gain: np.ndarray, *, most: int) -> tuple[float, int]:
    """(step, points) of the grid of work left, from none to the workload and what a restart longer than a slot can owe.

    Steps are a whole part of one more instance's work, so that keeping a size leads from point to point and the edge of what
    can still be finished in time lies on one.
    """
    owed = max(-least_efficiency(job.restart, n) for n in range(1, job.n_max + 1))
    reach = job.workload + max(0.0, owed) * float(gain.max())
    unit = float(np.diff(gain[1:]).min()) if len(gain) > 2 else float(gain[1])
    if not unit > 1e-9 * reach:
        unit = float(gain[gain > 0].min()) if (gain > 0).any() else reach
    parts = [k for k in (20, 10, 5, 4, 2) if reach / unit * k <= min(most, FINE_POINTS)]
    step = unit / (parts[0] if parts else 1)
    if reach / step > most:
        step = reach / most
    return step, math.ceil(reach / step - 1e-9) + 2


# ---
# The stochastic policy: the best answer to a market that moves by chains learned from its own past (M4.6) (ours).

#: Hours after which chains and tables are made anew.
REFRESH_HOURS = 3.0
#: Slots that tables reach beyond their refresh, for the windows of AHAP that end on them.
REACH_BEYOND = 6
#: Bytes of tables that the views of one replay keep: many short slots and a restless price would fill the memory.
MOST_BYTES = 2**30
#: Half-life of transitions, hours, for the end rule (c).
DEFAULT_HALF_LIFE = 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What the policy carries from slot to slot: its tables, and what the job saw where no record is kept.

    The tables follow from what was seen, so they have no part in equality.
    """

    tables: ValueTables | None = field(default=None, compare=False, repr=False)
    price: tuple[float, ...] = ()
    available: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stochastic:
    """Backward induction over (slot, work left, size before, count, price) on chains that forget (M4.6).

    The chains are estimated from `View.past`: the market's own transitions with a half-life of ``half_life_hours``, shrunk toward
    those of its peers and toward staying put; without a record, from what the job itself has seen. They and the tables are made
    anew every `REFRESH_HOURS`. The answer is the size of most expected value; a deadline
    that on-demand can still meet is kept in its reach (`least_net`), which costs nothing measurable. In a gap the count is taken
    as 0 and only the net acts, or where the deadline is out of reach the tables: a job given up is not rushed.

    Raises `SettingsError` for a half-life that is not positive.
    """

    half_life_hours: float = DEFAULT_HALF_LIFE
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.half_life_hours > 0:
            raise SettingsError(
                f"half-life of {self.half_life_hours} hours", expected="a positive number of hours"
            )
        object.__setattr__(self, "name", f"Stochastic({self.half_life_hours:g})")

    def start(self, job: Job) -> Learned:
        """Nothing learned yet; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return Learned()

    def decide(self, state: Learned, view: View) -> tuple[Allocation, Learned]:
        """The size of most expected value."""
        state = _noted(state, view)
        if is_done(view):
            return HOLD_NOTHING, state
        if not view.observed and deadline_in_reach(view):
            return least_net(view, HOLD_NOTHING), state
        tables = tables_in_force(view, _past(state, view), self.half_life_hours, recent=state.tables)
        n = tables.size(
            slot=view.slot,
            rest=work_left(view),
            before=view.progress.n_previous,
            available=view.available,
            price=view.price * view.slot_hours,
        )
        wish = split(view, n)
        allocation = least_net(view, wish) if deadline_in_reach(view) else wish
        return allocation, replace(state, tables=tables)

    def decide_together(self, state: Learned, view: View, paths: Paths) -> np.ndarray | None:
        """`decide` on many futures at once, from the one set of tables they share.

        None where they may not share them: without a record, in a gap, or where one of the jobs has left the path of its tables.
        """
        job, numbers = view.job, pace(view.job, view.slot_hours)
        slack = WORK_TOLERANCE * job.workload
        rest = np.maximum(0.0, job.workload - paths.done)
        reach = np.array(numbers.reach[slots_left(view)])[paths.n_previous]
        off = (paths.done > view.slot * max(numbers.gain) + slack) | (rest > reach + slack)
        if view.past is None or not view.observed or off.any() or (rest <= slack).any():
            return None
        tables = tables_in_force(view, view.past, self.half_life_hours, recent=state.tables)
        chosen = tables.sizes(
            slot=view.slot,
            rest=rest,
            before=paths.n_previous,
            available=paths.available,
            price=paths.price * view.slot_hours,
        )
        left = rest - np.array(numbers.work)[paths.n_previous, chosen]
        kept = left <= np.array(numbers.reach[slots_left(view) - 1])[chosen] + slack
        for p in np.flatnonzero(~kept).tolist():
            own = on_path(view, paths, p)
            chosen[p] = least_net(own, split(own, int(chosen[p]))).total
        return chosen

    def explain(self, state: Learned, view: View, allocation: Allocation) -> str:
        """Pace, slack and spot of the slot, and how likely spot is to stay."""
        if not view.observed or is_done(view):
            return narrate(view, allocation)
        past = _past(_noted(state, view), view)
        counts = tables_in_force(view, past, self.half_life_hours, recent=state.tables).counts
        here = counts.index(view.available)
        there = counts.count >= max(1, allocation.spot)
        chance = float(counts.transition[here, there].sum())
        return narrate(
            view,
            allocation,
            rule=f"{chance:.0%} chance of {max(1, allocation.spot)} or more on spot in the next slot",
        )


def _noted(state: Learned, view: View) -> Learned:
    """The state with this slot noted, where no record is kept."""
    if view.past is not None:
        return state
    return replace(
        state,
        price=(*state.price, view.price if view.observed else np.nan),
        available=(*state.available, float(view.available) if view.observed else np.nan),
    )


def _past(state: Learned, view: View) -> Past:
    if view.past is not None:
        return view.past
    seen = np.array(state.available)
    return Past(price=np.array(state.price), available=seen, peers=np.empty((0, len(seen))))


def _before(past: Past, slots: int) -> Past:
    """The record as it was ``slots`` slots ago."""
    if slots == 0:
        return past
    return Past(price=past.price[:-slots], available=past.available[:-slots], peers=past.peers[:, :-slots])


def tables_in_force(
    view: View,
    past: Past,
    half_life_hours: float,
    *,
    beyond: int = REACH_BEYOND,
    recent: ValueTables | None = None,
) -> ValueTables:
    """The tables that hold in the slot of ``view``, with ``beyond`` slots more than until they are made anew.

    They are made every `REFRESH_HOURS` of the job from what was known then; a price between their levels counts as the nearest
    (tables of its own for such a slot changed nothing measurable). In a look ahead those made at the last slot known are kept.
    They depend on the market alone, not on what the job did (but for a job off the path of `make_tables`), so the views of one
    replay share them; ``recent`` are those of the slot before, taken where they are the same.
    """
    anywhere = _off_the_path(view)
    if past.age:  # a look ahead: those of the last slot known hold to the end
        left = view.job.deadline_slots - view.slot + past.age
        return _made(view, past, (past.age, half_life_hours, left, anywhere), recent)
    every = max(1, round(REFRESH_HOURS / view.slot_hours))
    age = min(view.slot % every, len(past.price) - 1)
    return _made(view, past, (age, half_life_hours, every + beyond, anywhere), recent)


def _off_the_path(view: View) -> bool:
    """Whether the job has more done than a job begun at slot 0 can have, or less than still meets the deadline."""
    fastest = max(pace(view.job, view.slot_hours).gain)
    ahead = view.progress.done > view.slot * fastest + WORK_TOLERANCE * view.job.workload
    return ahead or not deadline_in_reach(view)


def _made(
    view: View, past: Past, terms: tuple[int, float, int, bool], recent: ValueTables | None
) -> ValueTables:
    age, half_life_hours, keep, anywhere = terms
    slot = view.slot - age
    key = (slot, half_life_hours, keep, anywhere)
    if view.tables is not None and view.past is not None:
        known = view.tables.get(key)
        if isinstance(known, ValueTables):
            return known
    elif recent is not None and recent.key == key:
        return recent
    known_then = past if past.age else _before(past, age)
    # In a gap the last price known then: a later one would make the tables depend on who asks first.
    known_prices = known_then.price[~np.isnan(known_then.price)]
    last = float(known_prices[-1]) if len(known_prices) else view.on_demand_usd
    now = Moment(
        slot=slot,
        slot_hours=view.slot_hours,
        price=view.price if view.observed and not age else last,
        on_demand_usd=view.on_demand_usd,
    )
    beliefs = Beliefs(own_hours=half_life_hours, peer_hours=half_life_hours)
    made = replace(
        make_tables(view.job, known_then, now, keep=keep, beliefs=beliefs, anywhere=anywhere), key=key
    )
    if view.tables is not None and view.past is not None:
        view.tables[key] = made
        _let_go(view.tables)
    return made


def _let_go(kept: dict[tuple[object, ...], object]) -> None:
    """Drop the oldest tables beyond `MOST_BYTES`, never the newest; who asks for them again makes the same."""
    held = {key: tables.after.nbytes for key, tables in kept.items() if isinstance(tables, ValueTables)}
    beyond = sum(held.values()) - MOST_BYTES
    for key in list(held)[:-1]:
        if beyond <= 0:
            break
        beyond -= held[key]
        del kept[key]


def expected_to_go(view: View, slot: int) -> ExpectedToGo:
    """The end rule (c) of M3.3: what the job is expected to be worth from ``slot`` on, as the chains see it in ``view``."""
    past = _past(_noted(Learned(), view), view)
    tables = tables_in_force(view, past, DEFAULT_HALF_LIFE, beyond=max(REACH_BEYOND, slot - view.slot))
    price = view.price * view.slot_hours
    key = ("to go", tables.key, view.slot, slot, view.available, price)
    if view.tables is None:
        return tables.to_go(slot=view.slot, end=slot, available=view.available, price=price)
    known = view.tables.get(key)
    if not isinstance(known, ExpectedToGo):
        known = tables.to_go(slot=view.slot, end=slot, available=view.available, price=price)
        view.tables[key] = known
    return known
