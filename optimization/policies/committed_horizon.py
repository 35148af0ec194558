"""AHAP: committed horizon control with forecasts (M4.5; paper A, CHC)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar

from slackwater.optimization.job.definition import Job, check_job
from slackwater.optimization.policies.contract import NameForm, View
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    WORK_TOLERANCE,
    all_spot,
    cheapest_split,
    deadline_in_reach,
    expected_progress,
    finishing_size,
    is_done,
    least_net,
    narrate,
    spot_is_cheaper,
)
from slackwater.optimization.window.plan import Allocation, EndRule, ExpectedToGo, HorizonProblem, Plan
from slackwater.warehouse.errors import SettingsError

Solve = Callable[[HorizonProblem], Plan]
#: Returns the expected value of the job from a later slot on, given the information of the view
#: (M3.3c).
Expectation = Callable[[View, int], ExpectedToGo]


class Commit(StrEnum):
    """Ways in which plans bind over the v slots of their commitment (M4.5)."""

    MEAN = "mean"
    LAST = "last"


#: Words in canonical names for end rules other than the default.
END_RULE_NAMES = {
    EndRule.TARGET: "target",
    EndRule.ON_DEMAND_TO_GO: "on_demand",
    EndRule.EXPECTED_TO_GO: "expected",
}


def solve_by_labels(problem: HorizonProblem) -> Plan:
    """Solve the problem with the label-setting solver (M3.2), imported on first use because it is slow to load."""
    from slackwater.optimization.window.twin import solve_window

    return solve_window(problem)


def expected_by_chains(view: View, slot: int) -> ExpectedToGo:
    """Return the value function of the stochastic policy (M4.6), imported on first use."""
    from slackwater.optimization.policies.stochastic import expected_to_go

    return expected_to_go(view, slot)


@dataclass(frozen=True, slots=True)
class Commitments:
    """Plans that may still bind, newest last: pairs of (slot of the plan, allocations)."""

    plans: tuple[tuple[int, tuple[Allocation, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahap:
    """AHAP(omega, v, sigma): solve M3 over omega slots and act on the plans that commit to this slot (M4.5).

    A plan of slot k commits to slots k..k+v-1. With ``commit`` *mean* a plan is computed in every
    slot, so at most v plans cover a slot, and the action is their mean; v = 1 is receding horizon
    control, v = omega averages fixed horizons (CHC). With *last* (ours, the other reading of paper
    A) the last plan is followed for its v slots before the next plan is computed; for v = 1 the two
    are identical and named *mean*. The means of on-demand and spot are rounded half up and clipped
    to the available spot; cheaper spot of the same slot replaces on-demand (M3.2). The policy never
    runs more instances than finish the job in the slot.

    Terms that M4.5 leaves open were chosen by measurement (decision 0005). *Needed size* when
    behind: the least size with which on-demand can still finish by d, which the safety net adds for
    every policy. *Far enough ahead*: z >= Zexp(t + omega), the target at the end of the window is
    already reached; the policy then runs all spot at up to sigma p_o and nothing else. In a gap no
    plan is computed and only the safety net acts.

    ``end_rule`` defaults to on-demand to go (M3.3b), which did better than the target with issued,
    perfect and persistence forecasts alike. Expected to go (M3.3c) takes its table from
    ``expected``, by default the value function of M4.6; a window that ends at d uses M2.6 instead.
    ``solve`` solves the planning problems; results do not depend on the solver.

    Raises `SettingsError` unless 1 <= v <= omega and 0 < sigma <= 1.
    """

    name_form: ClassVar = NameForm(
        numbers={"omega": int, "commitment": int, "sigma": float},
        words={word.value: {"commit": word} for word in Commit}
        | {word: {"end_rule": rule} for rule, word in END_RULE_NAMES.items()},
    )
    omega: int
    commitment: int
    sigma: float
    end_rule: EndRule = EndRule.ON_DEMAND_TO_GO
    commit: Commit = Commit.MEAN
    expected: Expectation = field(default=expected_by_chains, compare=False, repr=False)
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
        if self.commitment == 1:
            object.__setattr__(self, "commit", Commit.MEAN)
        words = [self.commit.value] if self.commit is not Commit.MEAN else []
        words += [END_RULE_NAMES[self.end_rule]] if self.end_rule is not EndRule.ON_DEMAND_TO_GO else []
        terms = [str(self.omega), str(self.commitment), f"{self.sigma:g}", *words]
        object.__setattr__(self, "name", f"AHAP({','.join(terms)})")

    def with_solver(self, solve: Solve) -> Ahap:
        """Return the same policy with ``solve`` as the solver of its planning problems."""
        return replace(self, solve=solve)

    def start(self, job: Job) -> Commitments:
        """Return no plans; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return Commitments()

    def decide(self, state: Commitments, view: View) -> tuple[Allocation, Commitments]:
        """Return the allocation of the plans that commit to this slot, or spot only when far enough ahead."""
        covering = tuple(plan for plan in state.plans if plan[0] > view.slot - self.commitment)
        if is_done(view):
            return HOLD_NOTHING, Commitments(covering)
        if not view.observed:
            return least_net(view, HOLD_NOTHING), Commitments(covering)
        far = self._far_ahead(view)
        plans = covering
        if self._plans_now(covering, far):
            plans = (*covering, (view.slot, self._plan(view)))
        wish = self._far_wish(view) if far else self._commit(view, plans)
        enough = finishing_size(view)
        if enough is not None and wish.total > enough:
            wish = cheapest_split(view, enough)
        return (least_net(view, wish) if deadline_in_reach(view) else wish), Commitments(plans)

    def choice(self, view: View) -> tuple[Hashable, ...]:
        """Return the terms of the plans, and whether spot is cheap enough where the job is far enough ahead."""
        far = view.observed and self._far_ahead(view)
        terms = self.omega, self.commitment, self.commit, self.end_rule, self.expected
        return (*terms, far and self._is_cheap(view))

    def explain(self, state: Commitments, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, and the number of plans behind the allocation."""
        if not view.observed or is_done(view):
            return narrate(view, allocation)
        if self._far_ahead(view):
            return narrate(
                view,
                allocation,
                rule=f"far ahead of schedule: spot is used up to {self.sigma:g} of on-demand",
            )
        covering = [slot for slot, _ in state.plans if slot > view.slot - self.commitment]
        window = len(view.window(self.omega))
        over = f"over {window} {'slot' if window == 1 else 'slots'}"
        if self.commit is Commit.LAST and covering:
            age = view.slot - covering[-1]
            return narrate(view, allocation, rule=f"the plan of {age} {'slot' if age == 1 else 'slots'} ago")
        plans = f"mean of {len(covering) + 1} plans" if covering else "the plan"
        return narrate(view, allocation, rule=f"{plans} {over}")

    def _plans_now(self, covering: tuple[tuple[int, tuple[Allocation, ...]], ...], far: bool) -> bool:
        """Return whether to compute a plan: in every slot, or once the last plan is used up.

        No plan is computed if none of its slots would be used.
        """
        if self.commitment == 1 and far:
            return False
        return self.commit is Commit.MEAN or not covering

    def _plan(self, view: View) -> tuple[Allocation, ...]:
        window, end_rule = view.window(self.omega), self.end_rule
        end = view.slot + len(window)
        if end_rule is EndRule.EXPECTED_TO_GO and end == view.job.deadline_slots:
            end_rule = EndRule.ON_DEMAND_TO_GO
        elif (
            end_rule is EndRule.ON_DEMAND_TO_GO and not view.on_demand.sold and end < view.job.deadline_slots
        ):
            end_rule = EndRule.TARGET  # no on-demand instances are sold
        problem = HorizonProblem(
            job=view.job,
            slot=view.slot,
            done=view.progress.done,
            n_previous=view.progress.n_previous,
            window=window,
            end_rule=end_rule,
            expected=self.expected(view, end) if end_rule is EndRule.EXPECTED_TO_GO else None,
        )
        return self.solve(problem).allocations[: self.commitment]

    def _far_wish(self, view: View) -> Allocation:
        return all_spot(view) if self._is_cheap(view) else HOLD_NOTHING

    def _is_cheap(self, view: View) -> bool:
        return view.price <= self.sigma * view.on_demand_usd

    def _far_ahead(self, view: View) -> bool:
        job = view.job
        target = expected_progress(job, view.slot + self.omega)
        return view.progress.done >= target - WORK_TOLERANCE * job.workload

    def _commit(self, view: View, plans: tuple[tuple[int, tuple[Allocation, ...]], ...]) -> Allocation:
        covering = [plan[view.slot - at] for at, plan in plans if view.slot - at < len(plan)]
        if not covering:
            return HOLD_NOTHING
        count, job = len(covering), view.job
        on_demand = int(sum(a.on_demand for a in covering) / count + 0.5)
        spot = int(sum(a.spot for a in covering) / count + 0.5)
        available = view.available if spot_is_cheaper(view) else 0
        n = min(on_demand + min(spot, available), job.n_max)
        if 0 < n < job.n_min:
            n = job.n_min if available >= job.n_min else 0
        return cheapest_split(view, n)
