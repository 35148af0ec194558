"""Stochastic policy: dynamic programming on Markov chains estimated from the market's history (M4.6) (ours).

The end rule (c) of M3.3 uses the value tables of this policy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import numpy as np

from slackwater.optimization.job.definition import Job, check_job, times_of, work_needed
from slackwater.optimization.kernels.induction import Choices, Game, SlotState, chosen_size, induct
from slackwater.optimization.market.belief import Belief, CountChain, Forgetting, PriceChain
from slackwater.optimization.policies.contract import NameForm, Paths, Running, View
from slackwater.optimization.policies.grids import band, table_grid
from slackwater.optimization.policies.holding import HeldTables, WorkLeft, in_time, make_held_tables
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    LETS_GO,
    WORK_TOLERANCE,
    always_worth_finishing,
    cheapest_split,
    deadline_in_reach,
    guard_allows_spot,
    is_done,
    keeps_deadline,
    narrate,
    pace,
    priced_net,
    work_left,
    worth_finishing,
)
from slackwater.optimization.window.plan import Allocation, ExpectedToGo
from slackwater.warehouse.errors import SettingsError

#: Number of grid points in the table of the end rule.
END_POINTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueTables:
    """Expected values after each of the slots ``game.slot`` .. ``game.slot + len(after) - 1``, USD.

    ``after`` has shape (slots, S, K, M, points), as returned by `kernels.induction.induct`.
    ``counts`` and ``prices`` map a count and a price (per slot) to their states.
    """

    job: Job
    game: Game
    counts: CountChain
    prices: PriceChain
    after: np.ndarray
    choices: Choices

    def worth(self, view: View, allocation: Allocation, left: float) -> float:
        """Return the value of ``allocation`` in the slot of ``view`` minus its cost in the slot, USD (M3.7).

        ``left`` is the work left after the slot. The market state counts all of its spot instances,
        including those of other jobs.
        """
        game, n = self.game, allocation.total
        after = float(view.job.completion_value(view.slot + 1))
        if left > game.slack:
            cell = self.counts.index(view.count), self.prices.index(view.price * view.slot_hours)
            nearest = self.choices.near[np.searchsorted(self.choices.sizes, n)]
            points = self.after[view.slot - game.slot, *cell, nearest]
            after = float(np.interp(left / game.step, np.arange(game.points), points))
        paid = allocation.on_demand * view.on_demand_usd + allocation.spot * view.price
        return after - paid * view.slot_hours

    def size(self, *, slot: int, rest: float, before: int, available: int, price: float) -> int:
        """Return the size of highest expected value in ``slot``, the least of equal sizes.

        ``price`` is in USD per instance-slot.
        """
        game = self.game
        column = self.after[slot - game.slot, self.counts.index(available), self.prices.index(price)]
        state = SlotState(
            float(rest), int(before), int(available), float(price), float(self.job.completion_value(slot + 1))
        )
        return int(chosen_size(game, column, self.choices, state))

    def to_go(self, *, slot: int, end: int, available: int, price: float) -> ExpectedToGo:
        """Return W of M3.3 (c) at the start of slot ``end`` > ``slot``, expected over the market from ``slot`` on.

        The tables must reach to slot ``end - 1``.
        """
        game = self.game
        states, levels = np.zeros(len(self.counts.count)), np.zeros(len(self.prices.level_usd))
        states[self.counts.index(available)] = 1.0
        levels[self.prices.index(price)] = 1.0
        for i in range(slot - game.slot, end - 1 - game.slot):
            states, levels = states @ game.chain[i], levels @ game.price_chain[i]
        points = end_points(game.points)
        # Thin before averaging: a simulation of future slots needs thousands of these tables.
        thinned = self.after[end - 1 - game.slot][..., points]
        table = np.tensordot(np.outer(states, levels), thinned, axes=2)
        work = self.job.workload - points * game.step
        value = table[self.choices.near].T
        # The tables are in single precision; rounding must not lift a value above the job's.
        return ExpectedToGo(work=work, value_usd=np.minimum(value, self.job.value))


@lru_cache(maxsize=64)
def end_points(points: int) -> np.ndarray:
    """Return the grid points of the end rule's table, the most work left first; a shared read-only array."""
    spread = np.linspace(0, points - 1, min(points, END_POINTS))
    points_kept: np.ndarray = np.unique(np.round(spread).astype(int))[::-1]
    points_kept.flags.writeable = False
    return points_kept


def make_tables(job: Job, belief: Belief, *, keep: int, anywhere: bool = True) -> ValueTables:
    """Compute the value tables by backward induction from the deadline to the slot of ``belief``.

    ``keep`` is the number of slots to store, from the slot of the belief on. Without ``anywhere``
    the tables cover only the work that a job begun at slot 0 can have left while on-demand still
    meets the deadline, plus the work of a slot; with it, every amount of work.
    """
    slots, grid = job.deadline_slots - belief.slot, table_grid(job, belief)
    game = Game(
        sizes=grid.sizes,
        gain=grid.gain,
        available=grid.counts.count.astype(np.int64),
        chain=np.ascontiguousarray(grid.chain),
        price=grid.prices.level_usd,
        price_chain=belief.price_transitions(slots),
        on_demand=float(belief.on_demand_usd * belief.slot_hours),
        restart=job.restart,
        value=job.worth,
        slot=belief.slot,
        slack=job.workload - work_needed(job.workload),
        step=grid.step,
        points=grid.points,
    )
    return ValueTables(
        job=job,
        game=game,
        counts=grid.counts,
        prices=grid.prices,
        after=induct(game, min(keep, slots), None if anywhere else band(job, game)),
        choices=grid.choices,
    )


#: Forgetting of the chains that horizon programs end on.
PLAIN = Forgetting()
#: Maximal number of table computations per job; a job of up to this many slots computes them in
#: every slot.
MOST_TABLES = 96
#: Additional slots that tables cover, for the windows of AHAP that end on them.
REACH_BEYOND = 4
#: Maximal bytes of tables cached by the views of one replay: many short slots and a volatile price
#: would fill the memory.
MOST_BYTES = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Stochastic:
    """Backward induction over (slot, work left, previous size, count, price) on the market belief (M4.6, M6.9).

    The policy chooses the size of highest expected value. The chains of the belief forget with a
    half-life of ``half_life_hours``. Belief and tables are recomputed in every slot
    (`tables_in_force`). A deadline that on-demand can still meet is protected if finishing on
    demand pays (`priced_net`), at no measurable cost; otherwise the tables decide.

    In a gap the count is taken as 0 and only the safety net acts, or the tables if the deadline is
    out of reach: a job that is given up is not rushed. With ``guard`` a job of 0 or N instances,
    whose deadline is within reach and pays, runs on-demand once the guard of M4.3 fails.

    Raises `SettingsError` for a half-life that is not positive.
    """

    name_form: ClassVar = NameForm(optional={"half_life_hours": float}, words={"guard": {"guard": True}})
    half_life_hours: float = Forgetting().own_hours
    guard: bool = False
    name: str = field(init=False)
    memoryless: bool = field(default=True, init=False, repr=False, compare=False)
    plans_in_world: bool = field(default=True, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.half_life_hours > 0:
            raise SettingsError(
                f"half-life of {self.half_life_hours} hours", expected="a positive number of hours"
            )
        object.__setattr__(self, "name", f"Stochastic({self.half_life_hours:g}{',guard' * self.guard})")

    @property
    def forgetting(self) -> Forgetting:
        """Forgetting of the chains of the belief."""
        return Forgetting(own_hours=self.half_life_hours, peer_hours=self.half_life_hours)

    def start(self, job: Job) -> None:
        """Return no state: all information is in the view; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        """Return the allocation of highest expected value."""
        if is_done(view):
            return HOLD_NOTHING, None
        in_reach = deadline_in_reach(view)
        if self._guards(view.job) and in_reach and not guard_allows_spot(view) and worth_finishing(view):
            return Allocation(view.job.n_max, 0), None
        if view.running is not None:
            return self._in_world(view, view.running), None
        if not view.observed and in_reach:
            return priced_net(view, HOLD_NOTHING), None
        n = tables_in_force(view, self.forgetting).size(
            slot=view.slot,
            rest=work_left(view),
            before=view.progress.n_previous,
            available=view.available,
            price=view.price * view.slot_hours,
        )
        return priced_net(view, cheapest_split(view, n)), None

    def _in_world(self, view: View, running: Running) -> Allocation:
        held, done = running.held.on_demand, view.progress.done
        in_reach = bool(in_time(view, done, held, running.pending_hours))
        if not view.observed and in_reach:
            return Allocation(held, 0) if held >= view.job.n_min else HOLD_NOTHING
        running_guarded = running._replace(guarded=running.guarded and in_reach)
        tables = held_tables_in_force(
            view, self.forgetting, running_guarded, done, WorkLeft.of(view, running_guarded)
        )
        return tables.target(view, running_guarded)

    def decide_together(self, state: None, view: View, paths: Paths) -> tuple[np.ndarray, np.ndarray] | None:
        """Decide many paths at once with shared tables (M4.12).

        Returns None if the paths cannot share tables: in a gap, if a job can no longer be in time, or
        with the guard of M4.3.
        """
        if self._guards(view.job) or not view.observed:
            return None
        if paths.guarded and not in_time(view, paths.done, paths.on_demand, paths.pending_hours).all():
            return None
        most_done = float(paths.done.max())
        return held_tables_in_force(view, self.forgetting, paths.running(0), most_done).targets(view, paths)

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, and whether the deadline is given up."""
        lets_go = deadline_in_reach(view) and not keeps_deadline(view, allocation.total)
        return narrate(view, allocation, rule=LETS_GO if lets_go else "")

    def _guards(self, job: Job) -> bool:
        return self.guard and job.n_min == job.n_max


def tables_in_force(view: View, forgetting: Forgetting) -> ValueTables:
    """Return the tables for the slot of ``view``, covering `REACH_BEYOND` slots more than until the next computation.

    The tables are computed from the belief of the slot. In a job of more than `MOST_TABLES` slots
    at most that many evenly spaced slots compute tables, and the slots between use the last of
    them. In simulations of future slots the tables of the fixed belief apply to the end. A price
    between two levels counts as the nearest level. The tables depend on the market alone, not on
    earlier decisions of the job (except for a job outside the range of `make_tables`), so the views
    of one replay share them. If the deadline may be given up, they cover every amount of work left.
    """
    return _value_tables(view, forgetting, REACH_BEYOND, _covers_all(view))


def _value_tables(view: View, forgetting: Forgetting, beyond: int, anywhere: bool) -> ValueTables:
    """Return the value tables of the belief that applies in this slot, computed at first use."""
    belief, keep = belief_in_force(view, forgetting, beyond)
    key = (belief, keep, anywhere)
    tables = view.tables.get(key)
    if not isinstance(tables, ValueTables):
        tables = view.tables[key] = make_tables(view.job, belief, keep=keep, anywhere=anywhere)
        _let_go(view.tables)
    return tables


def held_tables_in_force(
    view: View, forgetting: Forgetting, running: Running, done: float, left: WorkLeft | None = None
) -> HeldTables:
    """Return the tables in the world for the slot of ``view`` (M4.12); ``done`` is the most work done.

    They are computed at first use, in a look-ahead for any work left, else for what may become of ``left`` (None: any).
    Tables that do not cover it are computed again for any work left.
    """
    belief, keep = belief_in_force(view, forgetting, 0)
    gap = running.gap_hours / view.slot_hours
    ahead = is_ahead(view, done)
    key = ("held", belief, keep, running.guarded, gap, ahead)
    known = view.tables.get(key)
    if isinstance(known, HeldTables) and known.covers(left):
        return known
    anywhere = known is not None or view.market_beliefs().is_ahead(view.slot)
    tables = view.tables[key] = make_held_tables(
        view.job,
        times_of(view.job, view.slot_hours),
        belief,
        keep=keep,
        guarded=running.guarded,
        gap=gap,
        ahead=ahead,
        left=None if anywhere else left,
    )
    return tables


def belief_in_force(view: View, forgetting: Forgetting, beyond: int) -> tuple[Belief, int]:
    """Return the belief behind the tables of the slot of ``view``, and the number of slots the tables cover."""
    beliefs, d = view.market_beliefs(), view.job.deadline_slots
    if beliefs.is_ahead(view.slot):
        belief = beliefs.at(view.slot, forgetting)
        return belief, d - belief.slot
    every = math.ceil(d / MOST_TABLES)
    return beliefs.at(view.slot - view.slot % every, forgetting), every + beyond


def _never_let_go(view: View) -> bool:
    return always_worth_finishing(view.job, view.on_demand_usd, view.slot_hours)


def _covers_all(view: View) -> bool:
    """Return whether the tables must cover every amount of work left.

    True if the deadline may be given up, if the job has done more than a job begun at slot 0 can
    have done, or if on-demand no longer meets the deadline.
    """
    if not _never_let_go(view):
        return True
    return is_ahead(view, view.progress.done) or not deadline_in_reach(view)


def is_ahead(view: View, done: float) -> bool:
    """Return whether more work is done than a job begun at slot 0 can have done."""
    fastest = max(pace(view.job, view.slot_hours).gain)
    return done > (view.slot + view.elapsed) * fastest + WORK_TOLERANCE * view.job.workload


def _let_go(cache: dict[tuple[object, ...], object]) -> None:
    """Drop the oldest tables beyond `MOST_BYTES`, never the newest; they are recomputed when needed."""
    held = {key: tables.after.nbytes for key, tables in cache.items() if isinstance(tables, ValueTables)}
    beyond = sum(held.values()) - MOST_BYTES
    for key in list(held)[:-1]:
        if beyond <= 0:
            break
        beyond -= held[key]
        del cache[key]


def expected_to_go(view: View, slot: int) -> ExpectedToGo:
    """Return the expected value of the job from ``slot`` on under the belief in ``view``, end rule (c) of M3.3."""
    price, beyond, anywhere = (
        view.price * view.slot_hours,
        max(REACH_BEYOND, slot - view.slot - 1),
        _covers_all(view),
    )
    belief, _ = belief_in_force(view, PLAIN, beyond)
    key = ("to go", belief, view.slot, slot, view.available, price, anywhere)
    cached = view.tables.get(key)
    if not isinstance(cached, ExpectedToGo):
        tables = _value_tables(view, PLAIN, beyond, anywhere)
        cached = tables.to_go(slot=view.slot, end=slot, available=view.available, price=price)
        view.tables[key] = cached
    return cached
