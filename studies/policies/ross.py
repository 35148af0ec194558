"""ROSS: a randomised choice between waiting for spot and buying on-demand (M10).

Based on "Exploiting spot instances for time-critical cloud workloads using optimal randomized
strategies" (arXiv 2601.14612, 2026).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import ClassVar

from slackwater.optimization.job.definition import Allocation, Job, check_job
from slackwater.optimization.kernels.rules import usable_spot
from slackwater.optimization.policies.contract import NameForm, View
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    all_spot,
    cheapest_split,
    is_done,
    least_size,
    narrate,
    safety_net,
    slots_left,
    work_left,
)
from slackwater.warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True)
class Outage:
    """Lowest spot price observed, USD (infinite before any), and the current outage.

    ``since`` is the first slot of the outage, None outside of an outage; ``buying`` is whether
    on-demand is bought in it.
    """

    cheapest: float = math.inf
    since: int | None = None
    buying: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Ross:
    """ROSS(seed): all available spot; in an outage on-demand with probability 1 / sqrt(K), else wait (M10).

    The abstract of the paper proves that no deterministic rule is better than a ratio of order K =
    p_o / p_s, the cost ratio of on-demand to spot, and that a randomised rule reaches sqrt(K) if
    the deadline leaves room. The details of that rule were not publicly accessible; this
    implementation is ours, and the guarantee is not claimed.

    At the start of each outage (no usable spot) one random draw decides for the whole outage. With
    probability 1 / sqrt(K) on-demand does the remaining work at an even pace to d, so that an
    outage slot costs sqrt(K) times a spot slot on average; otherwise the slack is used. p_s is the
    lowest price below p_o observed by the job; before any such price the job waits. The draw
    depends only on the seed, the job's name and the first slot of the outage, so that a replay and
    a live turn draw the same. A gap counts as neither spot nor outage; the safety net protects the
    deadline.

    Raises `SettingsError` for a negative seed.
    """

    name_form: ClassVar = NameForm(numbers={"seed": int})
    seed: int = 0
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise SettingsError(f"ROSS with seed {self.seed}", expected="a seed of 0 or more")
        object.__setattr__(self, "name", f"ROSS({self.seed})")

    def start(self, job: Job) -> Outage:
        """Return the state before any observed price; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return Outage()

    def decide(self, state: Outage, view: View) -> tuple[Allocation, Outage]:
        """Return all spot if available, else the allocation drawn for this outage."""
        if is_done(view):
            return HOLD_NOTHING, state
        if not view.observed:
            return safety_net(view, HOLD_NOTHING), state
        after = self._noted(state, view)
        wish = all_spot(view)
        if not wish.total and after.buying:
            even = view.progress.done + work_left(view) / slots_left(view)
            wish = cheapest_split(view, least_size(view, even))
        return safety_net(view, wish), after

    def explain(self, state: Outage, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, and the draw of the outage."""
        if not view.observed or is_done(view):
            return narrate(view, allocation)
        after = self._noted(state, view)
        if after.since is None:
            return narrate(view, allocation)
        drawn = "on-demand" if after.buying else "waiting"
        return narrate(view, allocation, rule=f"random choice of slot {after.since}: {drawn}")

    def _noted(self, state: Outage, view: View) -> Outage:
        """Return the state updated with this observed slot: an outage begins, continues or ends."""
        cheapest = state.cheapest
        if usable_spot(view.available, view.price, view.on_demand_usd):
            cheapest = min(cheapest, view.price)
        if all_spot(view).total:
            return Outage(cheapest)
        if state.since is not None:
            return Outage(cheapest, state.since, state.buying)
        chance = buying_chance(cheapest, view.on_demand_usd) if view.on_demand.sold else 1.0
        buying = _pseudo_random(self.seed, view.job.name, view.slot) < chance
        return Outage(cheapest, view.slot, buying)


def buying_chance(spot_usd: float, on_demand_usd: float) -> float:
    """Return 1 / sqrt(K) with K = p_o / p_s; 0 while no spot price is known.

    >>> buying_chance(0.25, 1.0)
    0.5
    """
    return math.sqrt(max(0.0, spot_usd) / on_demand_usd) if spot_usd < on_demand_usd else 0.0


def _pseudo_random(seed: int, job: str, slot: int) -> float:
    """Return a pseudo-random number in [0, 1) from the arguments alone, equal in every process."""
    digest = blake2b(f"{seed}|{slot}|{job}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2.0**64
