"""A goodput scheduler after Sia (Jayaram Subramanya et al., SOSP 2023), on one type of GPU, with its published constants (M9.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optimization.cluster import Cluster
from optimization.cluster_engine import Active
from optimization.cluster_program import Choice, choose

#: The cost of an option whose goodput after a restart is nothing: above that of running nothing, so that it is never taken.
NEVER = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sia:
    """Every round the program min sum_j [ (r G_jk / G_j,min)^p + lambda_a |x - x_prev|_1 ] + lambda_n (jobs given nothing).

    G_jk is the believed rate of job j on k GPUs, r the restart factor max(age - restarts x 30 s, 0) / (age + 30 s) where the
    option is not the one held, p < 0 (fairness). Rounds of 60 s, p = -0.5, lambda_n = 1.1, lambda_a = 0.01, 30 s: published.
    Beliefs (ours, after Sia's bootstrapping): an option that has run is known; the others keep their believed rate times what
    the known option nearest in GPUs showed over its own. A believed rate proportional to GPUs is Sia's first guess, perfect
    scaling. An option that failed is never taken again, nor one believed to fail while another is left (ours: Sia knows no
    failures). Solved exactly by `choose`.
    """

    round_s: float = 60.0
    power: float = -0.5
    nothing: float = 1.1
    change: float = 0.01
    restart_s: float = 30.0

    @property
    def name(self) -> str:
        """Name in tables."""
        return "Sia-like"

    def decide(self, now_s: float, jobs: Sequence[Active], cluster: Cluster) -> Mapping[int, int]:
        """The attempts that the program of this round chooses (`Scheduler.decide`)."""
        options = [options_of(active, cluster) for active in jobs]
        choices = [self.choice(now_s, active, tried) for active, tried in zip(jobs, options, strict=True)]
        chosen = choose(choices, cluster.gpus)
        return {
            active.number: list(tried)[option]
            for active, tried, option in zip(jobs, options, chosen, strict=True)
            if option is not None
        }

    def choice(self, now_s: float, active: Active, options: Mapping[int, float]) -> Choice:
        """One job's part of the program; ``options`` maps its attempts to their believed rates."""
        least = min(options.values())
        age = now_s - active.job.arrival_s
        factor = max(age - active.restarts * self.restart_s, 0.0) / (age + self.restart_s)
        held = active.running
        cost = []
        for attempt, rate in options.items():
            goodput = rate / least * (factor if held is not None and attempt != held else 1.0)
            changed = (held is not None) + 1 if attempt != held else 0
            cost.append((goodput**self.power if goodput > 0 else NEVER) + self.change * changed)
        return Choice(
            nothing=self.nothing + (self.change if held is not None else 0.0),
            gpus=tuple(active.job.attempts[attempt].gpus for attempt in options),
            cost=tuple(cost),
        )


def options_of(active: Active, cluster: Cluster) -> dict[int, float]:
    """Attempt -> believed rate: for every number of GPUs the first attempt that has not failed and is not believed to.

    Where all that are left are believed to fail they are options too, as if they scaled perfectly.
    """
    first: dict[int, int] = {}
    doubtful: dict[int, int] = {}
    for i, attempt in enumerate(active.job.attempts):
        if i not in active.failed and attempt.gpus <= cluster.gpus_per_node:
            (first if attempt.believed > 0 else doubtful).setdefault(attempt.gpus, i)
    if not first:
        return {i: float(gpus) for gpus, i in doubtful.items()}
    return {i: believed_rate(active, i) for i in first.values()}


def believed_rate(active: Active, i: int) -> float:
    """What was observed of an attempt, else its believed rate times observed over believed of the observed one nearest in GPUs."""
    attempts, seen = active.job.attempts, active.observed
    if i in seen:
        return seen[i]
    known = [k for k in seen if attempts[k].believed > 0]
    if not known:
        return attempts[i].believed
    near = min(known, key=lambda k: (abs(attempts[k].gpus - attempts[i].gpus), -k))
    return attempts[i].believed * seen[near] / attempts[near].believed
