"""AdaSwitch: follow the predictions while they perform, a robust policy while they do not (M10).

After "AdaSwitch: an adaptive switching meta-algorithm for learning-augmented bounded-influence problems" (arXiv
2509.02302, 2025).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from optimization.job.definition import Job, Progress, check_job, finished, on_demand_to_go
from optimization.policies.baselines import MaximalSpot, UniformProgress
from optimization.policies.committed_horizon import Ahap, Solve, expected_by_chains, solve_by_labels
from optimization.policies.contract import Policy, View
from optimization.policies.pace import HOLD_NOTHING, is_done, narrate, step, work_price
from optimization.window.plan import Allocation, EndRule
from warehouse.amounts import usd
from warehouse.errors import SettingsError

#: The policies that may stand in for the predictions, by name: neither reads a forecast.
ROBUST: dict[str, Policy[Any]] = {"UP": UniformProgress(), "MSU-trim": MaximalSpot(trim=True)}
#: Price threshold of the policy that follows predictions: it takes all spot that is not nearly as dear as on-demand.
SIGMA = 0.9


@dataclass(frozen=True, slots=True)
class Rival:
    """The policy not followed, run on paper from where the job stood at the last switch.

    ``state`` is that policy's own; ``lead`` in USD is by how much it has done better than the job since.
    """

    progress: Progress
    state: Any
    lead: float = 0.0


@dataclass(frozen=True, slots=True)
class Switching:
    """Whether predictions are followed, the state of the policy that is, and its rival."""

    predicting: bool = True
    state: Any = None
    rival: Rival | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaSwitch:
    """AdaSwitch(omega, theta): AHAP(omega, 1) while it performs, else a robust policy, and back (M10).

    The paper's idea is kept: both rules are compared on what was observed, and the switch is made when the one in force
    has fallen too far behind what the other would have had. Past decisions have a bounded influence on what can still be
    had, here a change of size and the slack spent, so either rule can take over at any time. What is measured, and when,
    is ours: since the last switch the rule not followed is run on paper from where the job then stood; performance is
    what the job is expected to be worth from there on (M3.3c), minus what was paid; the other takes over once it is ahead
    by more than ``theta`` of the job's whole on-demand cost. The paper's guarantee is for its own form and is not
    claimed. In a gap only the safety net acts, by either rule.

    ``robust`` is "MSU-trim" or "UP". Raises `SettingsError` for a window below 1, theta outside [0, 1], or another robust
    policy.
    """

    omega: int
    theta: float
    robust: str = "MSU-trim"
    solve: Solve = field(default=solve_by_labels, compare=False, repr=False)
    name: str = field(init=False)
    rules: tuple[Ahap, Ahap, Policy[Any]] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.robust not in ROBUST:
            raise SettingsError(f"AdaSwitch beside {self.robust!r}", expected=f"one of {', '.join(ROBUST)}")
        if not 0.0 <= self.theta <= 1.0:
            raise SettingsError(f"AdaSwitch threshold {self.theta}", expected="a share of the cost in [0, 1]")
        followed = Ahap(
            omega=self.omega, commitment=1, sigma=SIGMA, end_rule=EndRule.EXPECTED_TO_GO, solve=self.solve
        )
        # A plan on paper is nobody's business: only plans that are followed go to the solver of live decisions.
        on_paper = followed.with_solver(solve_by_labels)
        object.__setattr__(self, "rules", (followed, on_paper, ROBUST[self.robust]))
        words = [] if self.robust == "MSU-trim" else [self.robust]
        object.__setattr__(
            self, "name", f"AdaSwitch({','.join([str(self.omega), f'{self.theta:g}', *words])})"
        )

    def with_solver(self, solve: Solve) -> AdaSwitch:
        """The same policy with its programs answered by ``solve``."""
        return replace(self, solve=solve)

    def start(self, job: Job) -> Switching:
        """The predictions are followed first; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return Switching(state=self.rules[0].start(job))

    def decide(self, state: Switching, view: View) -> tuple[Allocation, Switching]:
        """What the rule in force says, after the switch if there is one."""
        if is_done(view):
            return HOLD_NOTHING, state
        state = self._switched(state, view)
        rule = self.rules[0] if state.predicting else self.rules[2]
        allocation, own = rule.decide(state.state, view)
        return allocation, Switching(state.predicting, own, self._run_on(state, view, allocation))

    def explain(self, state: Switching, view: View, allocation: Allocation) -> str:
        """Pace, slack and spot of the slot, which rule is followed and how the other stands beside it."""
        if not view.observed or is_done(view):
            return narrate(view, allocation)
        state = self._switched(state, view)
        lead = state.rival.lead if state.rival is not None else 0.0
        rule, other = f"AHAP({self.omega},1)", self.robust
        if not state.predicting:
            rule, other = other, rule
        said = (
            f"{rule} is followed, {other} would be {usd(abs(lead))} USD {'ahead' if lead > 0 else 'behind'}"
        )
        return narrate(view, allocation, rule=said)

    def _switched(self, state: Switching, view: View) -> Switching:
        """The state with the rules exchanged where the rival's lead is too large, and with a rival."""
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
        """The rival after this slot, beside the job after ``held``."""
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
    """What the job is expected to be worth once the slot of ``view`` has ended on ``after``, USD, costs so far not counted.

    The end rules of M3.3: expected to go (c), and at the deadline on-demand to go (b).
    """
    job, end = view.job, view.slot + 1
    if finished(after.done, job.workload):
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
