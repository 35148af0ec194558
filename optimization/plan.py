"""Allocations, plans, outcomes, and the statement of one horizon problem (M2.3, M3.1, M3.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from optimization.job import Job
from optimization.market import MarketWindow


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


class PlanStatus(StrEnum):
    """How a solve ended (M3.4)."""

    OPTIMAL = "optimal"
    TIME_LIMIT = "time_limit_with_incumbent"
    NO_INCUMBENT = "time_limit_without_incumbent"
    INFEASIBLE = "infeasible"
    ERROR = "solver_error"


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonProblem:
    """One program of M3.1: the job at slot ``slot`` with ``done`` work and ``n_previous`` instances, and w slots of market.

    Slots at or after the deadline may not be in the window: the maker cuts it to ``deadline_slots - slot`` (M2.6
    ends every job there).
    """

    job: Job
    slot: int
    done: float
    n_previous: int
    window: MarketWindow
    end_rule: EndRule


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer to a `HorizonProblem`.

    ``objective`` for `EndRule.ON_DEMAND_TO_GO` is W - cost in USD (to maximise). For `EndRule.TARGET` it is the cost in
    USD of reaching ``end_progress`` (capped at the target): the most progress possible first, then the least cost.
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
