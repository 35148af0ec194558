"""AdaSwitch: follow the forecasts while they perform well, a robust policy otherwise (M10).

Based on "AdaSwitch: an adaptive switching meta-algorithm for learning-augmented bounded-influence
problems" (arXiv 2509.02302, 2025).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from slackwater.optimization.job.definition import (
    Allocation,
    Job,
    Progress,
    check_job,
    is_finished,
    on_demand_to_go,
)
from slackwater.optimization.policies.baselines import MaximalSpot, UniformProgress
from slackwater.optimization.policies.committed_horizon import (
    Ahap,
    Solve,
    expected_by_chains,
    solve_by_labels,
)
from slackwater.optimization.policies.contract import NameForm, Policy, View
from slackwater.optimization.policies.pace import HOLD_NOTHING, is_done, narrate, step
from slackwater.optimization.window.plan import EndRule
from slackwater.studies.policies.trust import work_price
from slackwater.warehouse.amounts import usd
from slackwater.warehouse.errors import SettingsError

#: Robust policies by name; none of them reads a forecast.
ROBUST: dict[str, Policy[Any]] = {"UP": UniformProgress(), "MSU-trim": MaximalSpot(trim=True)}
#: Price threshold of the forecast-based policy: it buys spot up to 90 % of the on-demand price.
SIGMA = 0.9


@dataclass(frozen=True, slots=True)
class Rival:
    """Simulated run of the policy that is not followed, starting from the job state at the last switch.

    ``state`` is the state of that policy. ``lead`` is its advantage over the job since the switch,
    in USD.
    """

    progress: Progress
    state: Any
    lead: float = 0.0


@dataclass(frozen=True, slots=True)
class Switching:
    """State of `AdaSwitch`: whether the forecasts are followed, the state of the active policy, and its rival."""

    predicting: bool = True
    state: Any = None
    rival: Rival | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaSwitch:
    """AdaSwitch(omega, theta): switch between AHAP(omega, 1) and a robust policy by performance (M10).

    As in the paper, the two policies are compared on observed data, and the active policy is
    replaced once it has fallen too far behind the other. A past decision has a bounded influence on
    later ones (the loss of a size change and the slack used), so either policy can take over at any
    time.

    The measure of performance and the time of a switch are ours: since the last switch the inactive
    policy is simulated from the job state at that switch. Performance is the expected value of the
    job from the current state on (M3.3c) minus the cost so far. The inactive policy takes over once
    it leads by more than ``theta`` times the on-demand cost of the whole job. The guarantee of the
    paper holds for its original form and is not claimed here. In a gap both policies leave the
    decision to the safety net.

    ``robust`` is "MSU-trim" or "UP". Raises `SettingsError` for a window below 1, theta outside [0,
    1], or an unknown robust policy.
    """

    name_form: ClassVar = NameForm(
        numbers={"omega": int, "theta": float}, words={word: {"robust": word} for word in ROBUST}
    )
    omega: int
    theta: float
    robust: str = "MSU-trim"
    solve: Solve = field(default=solve_by_labels, compare=False, repr=False)
    name: str = field(init=False)
    rules: tuple[Ahap, Ahap, Policy[Any]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.robust not in ROBUST:
            raise SettingsError(f"AdaSwitch with {self.robust!r}", expected=f"one of {', '.join(ROBUST)}")
        if not 0.0 <= self.theta <= 1.0:
            raise SettingsError(f"AdaSwitch threshold {self.theta}", expected="a share of the cost in [0, 1]")
        followed = Ahap(
            omega=self.omega, commitment=1, sigma=SIGMA, end_rule=EndRule.EXPECTED_TO_GO, solve=self.solve
        )
        # Plans that are only simulated need no external solver: it is reserved for plans that are
        # followed.
        on_paper = followed.with_solver(solve_by_labels)
        object.__setattr__(self, "rules", (followed, on_paper, ROBUST[self.robust]))
        words = [] if self.robust == "MSU-trim" else [self.robust]
        object.__setattr__(
            self, "name", f"AdaSwitch({','.join([str(self.omega), f'{self.theta:g}', *words])})"
        )

    def with_solver(self, solve: Solve) -> AdaSwitch:
        """Return the same policy with ``solve`` as the solver of its planning problems."""
        return replace(self, solve=solve)

    def start(self, job: Job) -> Switching:
        """Return the initial state, which follows the forecasts; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return Switching(state=self.rules[0].start(job))

    def decide(self, state: Switching, view: View) -> tuple[Allocation, Switching]:
        """Return the allocation of the active policy, after a switch if one is due, and the new state."""
        if is_done(view):
            return HOLD_NOTHING, state
        state = self._switched(state, view)
        rule = self.rules[0] if state.predicting else self.rules[2]
        allocation, own = rule.decide(state.state, view)
        return allocation, Switching(state.predicting, own, self._run_on(state, view, allocation))

    def explain(self, state: Switching, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, the active policy and the lead of the other."""
        if not view.observed or is_done(view):
            return narrate(view, allocation)
        state = self._switched(state, view)
        lead = state.rival.lead if state.rival is not None else 0.0
        rule, other = f"AHAP({self.omega},1)", self.robust
        if not state.predicting:
            rule, other = other, rule
        said = f"follows {rule}, {other} would be {usd(abs(lead))} USD {'ahead' if lead > 0 else 'behind'}"
        return narrate(view, allocation, rule=said)

    def _switched(self, state: Switching, view: View) -> Switching:
        """Return the state with the active policy replaced if the rival leads too far, and with a rival in any case."""
        if state.rival is None:
            return replace(state, rival=self._rival(view, not state.predicting))
        if state.rival.lead <= self.theta * view.job.workload * work_price(view):
            return state
        begun = (self.rules[2] if state.predicting else self.rules[0]).start(view.job)
        return Switching(not state.predicting, begun, self._rival(view, state.predicting))

    def _rival(self, view: View, predicting: bool) -> Rival:
        rule = self.rules[1] if predicting else self.rules[2]
        return Rival(progress=view.progress, state=rule.start(view.job))

    def _run_on(self, state: Switching, view: View, held: Allocation) -> Rival | None:
        """Advance the rival by this slot and update its lead over the job, which runs ``held``."""
        rival = state.rival
        if rival is None:
            return None
        rule = self.rules[2] if state.predicting else self.rules[1]
        paper = replace(view, progress=rival.progress)
        allocation, after = rule.decide(rival.state, paper)
        progress, own = step(rival.progress, allocation, paper), step(view.progress, held, view)
        same = progress.done == own.done and progress.n_previous == own.n_previous
        lead = own.cost_usd - progress.cost_usd
        lead += 0.0 if same else worth_after(view, progress) - worth_after(view, own)
        return Rival(progress=progress, state=after, lead=lead)


def worth_after(view: View, after: Progress) -> float:
    """Return the expected value of the job in state ``after`` at the end of the slot, USD, past costs excluded.

    Uses the end rules of M3.3: expected to go (c), and on-demand to go (b) at the deadline.
    """
    job, end = view.job, view.slot + 1
    if is_finished(after.done, job.workload):
        return job.completion_value(end)
    if end < job.deadline_slots:
        column = 0 if not after.n_previous else after.n_previous - job.n_min + 1
        return expected_by_chains(view, end).at(after.done, column)
    to_go = on_demand_to_go(
        job,
        done=after.done,
        n_previous=after.n_previous,
        slot=end,
        on_demand_usd=view.on_demand_usd,
        slot_hours=view.slot_hours,
    )
    return to_go.value_usd
