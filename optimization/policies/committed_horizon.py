"""AHAP, committed horizon control with predictions (M4.5; paper A, CHC)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from optimization.job import Job
from optimization.plan import Allocation, EndRule, HorizonProblem, Plan
from optimization.policies.narration import narrate
from optimization.policies.pace import (
    HOLD_NOTHING,
    WORK_TOLERANCE,
    all_spot,
    deadline_in_reach,
    expected_progress,
    finishing_size,
    is_done,
    least_net,
    size_in_reach,
    slots_left,
    split,
    spot_is_cheaper,
)
from optimization.policy import View
from optimization.termination import check_job
from warehouse.errors import SettingsError

Solve = Callable[[HorizonProblem], Plan]


def solve_by_labels(problem: HorizonProblem) -> Plan:
    """The exact twin of M3.2, imported when first used: its compiled code is slow to load."""
    from optimization.labels import solve_window

    return solve_window(problem)


@dataclass(frozen=True, slots=True)
class Commitments:
    """The plans that may still bind, newest last: (slot it was made in, its allocations)."""

    plans: tuple[tuple[int, tuple[Allocation, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahap:
    """AHAP(omega, v, sigma): solve M3 over omega slots each slot, act on the mean of the plans that cover it (M4.5).

    A plan made at slot k commits to k..k+v-1, so at most v cover a slot; v = 1 is receding horizon, v = omega
    averages fixed horizons (CHC). The means of on-demand and spot are rounded half up, clipped to the spot
    that is there, and on-demand gives way to cheaper spot of the same slot (M3.2); more than finishes the job
    in the slot is not held.

    Where M4.5 leaves the terms open they are ours. *Behind* is z < Zexp(t), and the *need* that the size
    never falls below then is the least with which on-demand can still be at Zexp(t + omega) when the window
    ends: catching up by t + 1 would overrule a plan that waits for spot it foresees (measured on 60 jobs on
    open histories, omega 3 and 5, v = 1, sigma = 0.9: mean utility 0.894 against 0.885 of on-demand-only
    cost). *Far enough ahead* is z >= Zexp(t + omega), the end of the window is reached already; then spot
    only, all of it, at up to sigma p_o. In a gap nothing is planned and only the safety net acts; the net
    adds the least size that keeps d in reach of on-demand while it is.

    ``end_rule`` defaults to on-demand to go (M3.3b): on those jobs, over six (omega, v) and two sigma, it
    gave 0.878 against 0.862 for the target with perfect forecasts, and 0.872 against 0.847 with the present
    held. ``solve`` answers the horizon programs; results do not depend on who does. Raises `SettingsError`
    unless 1 <= v <= omega and 0 < sigma <= 1.
    """

    omega: int
    commitment: int
    sigma: float
    end_rule: EndRule = EndRule.ON_DEMAND_TO_GO
    solve: Solve = field(default=solve_by_labels, compare=False, repr=False)
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.commitment <= self.omega:
            raise SettingsError(
                f"AHAP commitment {self.commitment} with window {self.omega}", expected="1 <= v <= omega"
            )
        if not 0.0 < self.sigma <= 1.0:
            raise SettingsError(
                f"AHAP threshold sigma {self.sigma}", expected="a share of on-demand in (0, 1]"
            )
        object.__setattr__(self, "name", f"AHAP({self.omega},{self.commitment},{self.sigma:g})")

    def with_solver(self, solve: Solve) -> Ahap:
        """The same policy with its programs answered by ``solve``."""
        return replace(self, solve=solve)

    def start(self, job: Job) -> Commitments:
        """No plan yet; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return Commitments()

    def decide(self, state: Commitments, view: View) -> tuple[Allocation, Commitments]:
        """The mean of the plans that cover this slot, or spot only when far enough ahead."""
        kept = tuple(plan for plan in state.plans if plan[0] > view.slot - self.commitment)
        if is_done(view):
            return HOLD_NOTHING, Commitments(kept)
        if not view.observed:
            return least_net(view, HOLD_NOTHING), Commitments(kept)
        plans = (*kept, (view.slot, self._plan(view)))
        wish = self._spot_only(view) if self._far_ahead(view) else self._mean(view, plans)
        enough = finishing_size(view)
        if enough is not None and wish.total > enough:
            wish = split(view, enough)
        return (least_net(view, wish) if deadline_in_reach(view) else wish), Commitments(plans)

    def explain(self, state: Commitments, view: View, allocation: Allocation) -> str:
        """Pace, slack and spot of the slot, and how many plans had a say."""
        if not view.observed or is_done(view):
            return narrate(view, allocation)
        if self._far_ahead(view):
            return narrate(
                view, allocation, rule=f"far ahead, spot is bought up to {self.sigma:g} of on-demand"
            )
        plans = 1 + sum(made > view.slot - self.commitment for made, _ in state.plans)
        window = len(view.window(self.omega))
        said = "the plan" if plans == 1 else f"mean of {plans} plans"
        return narrate(view, allocation, rule=f"{said} over {window} {'slot' if window == 1 else 'slots'}")

    def _plan(self, view: View) -> tuple[Allocation, ...]:
        problem = HorizonProblem(
            job=view.job,
            slot=view.slot,
            done=view.progress.done,
            n_previous=view.progress.n_previous,
            window=view.window(self.omega),
            end_rule=self.end_rule,
        )
        return self.solve(problem).allocations[: self.commitment]

    def _far_ahead(self, view: View) -> bool:
        job = view.job
        target = expected_progress(job, view.slot + self.omega)
        return view.progress.done >= target - WORK_TOLERANCE * job.workload

    def _spot_only(self, view: View) -> Allocation:
        return all_spot(view) if view.price <= self.sigma * view.on_demand_usd else HOLD_NOTHING

    def _mean(self, view: View, plans: tuple[tuple[int, tuple[Allocation, ...]], ...]) -> Allocation:
        covering = [made[view.slot - at] for at, made in plans if view.slot - at < len(made)]
        if not covering:
            return self._never_below_need(view, HOLD_NOTHING)
        count, job = len(covering), view.job
        on_demand = int(sum(a.on_demand for a in covering) / count + 0.5)
        spot = int(sum(a.spot for a in covering) / count + 0.5)
        there = view.available if spot_is_cheaper(view) else 0
        n = min(on_demand + min(spot, there), job.n_max)
        if 0 < n < job.n_min:
            n = job.n_min if there >= job.n_min else 0
        return self._never_below_need(view, split(view, n))

    def _never_below_need(self, view: View, wish: Allocation) -> Allocation:
        job = view.job
        if view.progress.done >= expected_progress(job, view.slot) - WORK_TOLERANCE * job.workload:
            return wish
        need = size_in_reach(view, min(self.omega, slots_left(view)))
        return wish if wish.total >= need else split(view, need)
