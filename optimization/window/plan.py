"""Allocations, plans, outcomes, and the statement of one horizon problem (M2.3, M3.1, M3.4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from optimization.job.definition import Job
from optimization.market.window import MarketWindow
from warehouse.errors import JobError

#: Share of the span of `ExpectedToGo` values that counts as rounding where they fall although work grows.
VALUE_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Allocation:
    """Instances held in one slot: ``on_demand`` and ``spot``."""

    on_demand: int
    spot: int

    @property
    def total(self) -> int:
        """n = n_o + n_s."""
        return self.on_demand + self.spot


class EndRule(StrEnum):
    """What the state at the end of the window is worth (M3.3)."""

    TARGET = "target"
    ON_DEMAND_TO_GO = "on_demand_to_go"
    EXPECTED_TO_GO = "expected_to_go"


class PlanStatus(StrEnum):
    """How a solve ended (M3.4).

    ``DIFFERS``: the solver called a plan optimal, and the exact twin knows another optimum; the plan is the better of the two.
    """

    OPTIMAL = "optimal"
    TIME_LIMIT = "time_limit_with_incumbent"
    NO_INCUMBENT = "time_limit_without_incumbent"
    INFEASIBLE = "infeasible"
    ERROR = "solver_error"
    DIFFERS = "solver_differs_from_twin"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpectedToGo:
    """W(z, n_end) of M3.3 (c): what a job is expected to be worth from the end of a window on, net of what it will pay (ours).

    ``work`` (k,) is strictly ascending progress in work units, ``value_usd`` (k, sizes) the worth by the size held in the
    window's last slot, one column for each of `optimization.window.statement.sizes` (0 and n_min..n_max). Between points W is
    linear in z, beyond the ends constant; a finished job is worth V(its finish slot) whatever the table says. More work is
    never worth less: columns that fall by more than rounding (`VALUE_ROUNDING`) are refused with `JobError`, what falls by less
    is lifted to the running maximum. The arrays are copied and closed for writing.
    """

    work: np.ndarray
    value_usd: np.ndarray
    _content: tuple[object, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # One memory order: compiled code is made anew for another.
        work, value = np.array(self.work, dtype=float), np.array(self.value_usd, dtype=float, order="C")
        if work.ndim != 1 or value.ndim != 2 or work.size < 1 or value.shape[0] != work.size:
            raise JobError(
                f"expected to go: work of shape {work.shape}, values of shape {value.shape}",
                expected="(k,) and (k, sizes) with k >= 1",
            )
        if not (np.isfinite(work).all() and np.isfinite(value).all() and (np.diff(work) > 0).all()):
            raise JobError(
                "expected to go: work that does not ascend, or numbers that are not finite",
                expected="strictly ascending work and finite values",
            )
        lifted = np.maximum.accumulate(value, axis=0)
        if (lifted - value).max() > VALUE_ROUNDING * (1e-300 + np.ptp(value)):
            raise JobError(
                f"expected to go: a value falls by {(lifted - value).max()} USD although more work is done",
                expected="values that never fall with work",
            )
        work.flags.writeable = lifted.flags.writeable = False
        object.__setattr__(self, "work", work)
        object.__setattr__(self, "value_usd", lifted)
        # Made once: many programs share a table, and bytes remember their hash.
        object.__setattr__(self, "_content", (lifted.shape, work.tobytes(), lifted.tobytes()))

    def at(self, done: float, column: int) -> float:
        """W in USD at ``done`` work units in one column."""
        return float(np.interp(done, self.work, self.value_usd[:, column]))

    def content(self) -> tuple[object, ...]:
        """A hashable key: equal for equal tables."""
        return self._content


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonProblem:
    """One program of M3.1: the job at slot ``slot`` with ``done`` work and ``n_previous`` instances, and w slots of market.

    Slots at or after the deadline may not be in the window: the maker cuts it to ``deadline_slots - slot`` (M2.6
    ends every job there). ``expected`` is the table of `EndRule.EXPECTED_TO_GO`, without which that rule is refused;
    the other rules do not read it. ``done`` may be below 0: a slot may owe progress (an efficiency below 0).
    """

    job: Job
    slot: int
    done: float
    n_previous: int
    window: MarketWindow
    end_rule: EndRule
    expected: ExpectedToGo | None = None

    def content(self) -> tuple[object, ...]:
        """A hashable key of everything the plan depends on: problems with equal keys have the same plan.

        ``window.observed`` is not in it: gaps are gaps by their count of 0.
        """
        window, reads_table = self.window, self.end_rule is EndRule.EXPECTED_TO_GO
        return (
            self.job,
            self.slot,
            self.done,
            self.n_previous,
            self.end_rule,
            window.price.tobytes(),
            window.available.tobytes(),
            window.on_demand_usd,
            window.slot_hours,
            self.expected.content() if reads_table and self.expected is not None else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to a `HorizonProblem`.

    ``objective`` for `EndRule.ON_DEMAND_TO_GO` and `EndRule.EXPECTED_TO_GO` is W - cost in USD (to maximise). For
    `EndRule.TARGET` it is the cost in USD of reaching ``end_progress`` (capped at the target): the most progress possible
    first, then the least cost.
    ``bound`` is the solver's proof, ``gap`` the relative distance between the two, ``seconds`` the solve's time.
    """

    allocations: tuple[Allocation, ...]
    status: PlanStatus
    objective: float
    bound: float
    gap: float
    seconds: float
    cost_usd: float
    end_progress: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a policy made of a job (M2.4-M2.6).

    ``allocations`` covers slots up to the finish or the deadline; ``cost_usd`` is what they cost.
    ``finished_slot`` is the number of slots used if the job finished by the deadline, else None. ``termination_cost_usd`` and
    ``finish_slots`` tell how M2.6 ended it: on-demand cost after d, and the slots used in all (None = given up).
    ``utility_usd`` = ``value_usd`` - ``cost_usd`` - ``termination_cost_usd``.
    """

    policy: str
    job: str
    allocations: tuple[Allocation, ...]
    progress: float
    cost_usd: float
    termination_cost_usd: float
    finished_slot: int | None
    finish_slots: int | None
    value_usd: float
    utility_usd: float

    @property
    def total_cost_usd(self) -> float:
        """Everything paid, after the deadline too."""
        return self.cost_usd + self.termination_cost_usd

    @property
    def on_time(self) -> bool:
        """Finished by the deadline."""
        return self.finished_slot is not None

    @property
    def spot_share(self) -> float:
        """Share of instance-slots up to the deadline that were spot; 0 if none were held."""
        total = sum(a.total for a in self.allocations)
        return sum(a.spot for a in self.allocations) / total if total else 0.0
