"""Planning window that balances the forecast uncertainty against the cost of a change (M10).

Based on "Smoothed online combinatorial optimization using imperfect predictions" (Wang, Song,
Theocharous, Mahadevan, 2022).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from slackwater.optimization.job.definition import Allocation, Job, check_job
from slackwater.optimization.policies.committed_horizon import (
    Ahap,
    Commit,
    Commitments,
    Solve,
    solve_by_labels,
)
from slackwater.optimization.policies.contract import NameForm, View
from slackwater.optimization.policies.pace import HOLD_NOTHING, is_done, narrate
from slackwater.optimization.window.plan import EndRule
from slackwater.studies.policies.forecast_record import ForecastRecord, noted, usd_per_slot
from slackwater.studies.policies.trust import growth_cost
from slackwater.warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Windowed:
    """Forecast record, length of the current window and the plan that binds over it."""

    record: ForecastRecord = field(default_factory=ForecastRecord)
    width: int = 1
    plan: Commitments = field(default_factory=Commitments)


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainWindow:
    """Window(most, sigma): plan over the number of slots that balances uncertainty against switching (M10).

    The paper bounds the regret of planning over S slots by the sum of the predictive uncertainties
    plus one switching cost, and chooses the window that balances the two. Here S minimises (C + sum
    of epsilon_k for k < S) / S over 1..``most`` (the form is ours). epsilon_k is the cost per slot
    of the forecast errors at a lead of k slots on this job so far, measured by the policy
    (`forecast_record`). C is the cost of one size change, (1 - mu_up) of a slot's work at its
    on-demand price. The plan is that of M3 with the end rule of the default pool. With ``bind`` the
    plan is followed for its S slots, as in the paper; otherwise a new plan is computed in every
    slot. Everything else, including the price threshold sigma and the safety net, is as in `Ahap`.

    Raises `SettingsError` for a window below 1 or sigma outside (0, 1].
    """

    name_form: ClassVar = NameForm(numbers={"most": int, "sigma": float}, words={"bind": {"bind": True}})
    most: int
    sigma: float
    bind: bool = False
    solve: Solve = field(default=solve_by_labels, compare=False, repr=False)
    name: str = field(init=False)
    planners: tuple[Ahap, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.most < 1:
            raise SettingsError(f"a window of at most {self.most} slots", expected="at least one")
        planners = tuple(
            Ahap(
                omega=width,
                commitment=width if self.bind else 1,
                sigma=self.sigma,
                end_rule=EndRule.EXPECTED_TO_GO,
                commit=Commit.LAST,
                solve=self.solve,
            )
            for width in range(1, self.most + 1)
        )
        object.__setattr__(self, "planners", planners)
        words = ["bind"] if self.bind else []
        object.__setattr__(self, "name", f"Window({','.join([str(self.most), f'{self.sigma:g}', *words])})")

    def with_solver(self, solve: Solve) -> UncertainWindow:
        """Return the same policy with ``solve`` as the solver of its planning problems."""
        return replace(self, solve=solve)

    def start(self, job: Job) -> Windowed:
        """Return an empty forecast record and no plan; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return Windowed()

    def decide(self, state: Windowed, view: View) -> tuple[Allocation, Windowed]:
        """Return the allocation of the current plan, or of a new plan over a newly chosen window."""
        record = noted(state.record, view, max(1, self.most - 1))
        if is_done(view):
            return HOLD_NOTHING, replace(state, record=record)
        width = self._width(state, record, view)
        allocation, plan = self.planners[width - 1].decide(state.plan, view)
        return allocation, Windowed(record, width, plan)

    def explain(self, state: Windowed, view: View, allocation: Allocation) -> str:
        """Describe the window, and the slot as `Ahap` does."""
        if not view.observed or is_done(view):
            return narrate(view, allocation)
        record = noted(state.record, view, max(1, self.most - 1))
        width = self._width(state, record, view)
        return self.planners[width - 1].explain(state.plan, view, allocation)

    def _width(self, state: Windowed, record: ForecastRecord, view: View) -> int:
        """Return the window of the plan that binds this slot, or the best window now."""
        if any(made > view.slot - self.planners[state.width - 1].commitment for made, _ in state.plan.plans):
            return state.width
        if record.forecast is None:
            return 1
        job = view.job
        held = min(max(view.available, view.progress.n_previous, job.n_min), job.n_max)
        return balanced_window(usd_per_slot(record.forecast, view), growth_cost(view, held), self.most)


def balanced_window(uncertainty: tuple[float, ...], change: float, most: int) -> int:
    """Return the S in 1..``most`` with the least (change + sum of uncertainty[:S - 1]) / S, the longest of ties.

    A window of S slots uses the forecasts of S - 1 slots, since the present is observed.

    >>> balanced_window((0.5, 2.0, 2.0), 2.0, 4)
    2
    """
    best, width, total = change, 1, change
    for size in range(2, most + 1):
        total += uncertainty[size - 2]
        if total / size <= best:
            best, width = total / size, size
    return width
