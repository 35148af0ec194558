"""Trust in the forecast with a parameter lambda: learning-augmented ski rental for each chance to grow (M10).

Based on "Optimal robustness-consistency trade-offs for learning-augmented online algorithms" (Wei
and Zhang, NeurIPS 2020), which shows that the ski rental rule used here is the best deterministic
rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

from slackwater.optimization.job.definition import Allocation, Job, check_job
from slackwater.optimization.kernels.rules import after_growing, spot_is_cheaper
from slackwater.optimization.policies.contract import NameForm, View
from slackwater.optimization.policies.pace import (
    HOLD_NOTHING,
    all_spot,
    cheapest_split,
    is_done,
    narrate,
    pace,
    safety_net,
    slots_left,
)
from slackwater.warehouse.amounts import usd
from slackwater.warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Trust(lambda): grow to all spot once the cost of staying small exceeds a threshold set by the forecast (M10).

    The problem of the paper is ski rental: rent day by day or buy once, with a predicted length of
    the season. Here (ours) the season is a run of slots with more cheap spot than the job runs; the
    rent of a slot is the saving, compared with on-demand, that the unused spot would have given;
    buying is growing, which costs b = (1 - mu_up) of the work of a slot (M2.4).

    The rule is the known rule: if the forecast rents of the season reach b, buy once ``caution`` b
    of rent is paid, else only at b / ``caution``. So lambda = 0 trusts every forecast, and lambda =
    1 ignores the forecast and buys at the break-even point. In between a season costs at most 1 +
    lambda times the hindsight optimum if the forecast was right and 1 + 1 / lambda times if it was
    wrong (for equal rents; here they vary). The last forecast value is repeated to d. If growing is
    free, all spot is used at once. Only the safety net uses on-demand.

    The state is the rent paid so far in this season, USD. Raises `SettingsError` for lambda outside
    [0, 1].
    """

    name_form: ClassVar = NameForm(numbers={"caution": float})
    caution: float
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.caution <= 1.0:
            raise SettingsError(f"Trust with lambda {self.caution}", expected="a share in [0, 1]")
        object.__setattr__(self, "name", f"Trust({self.caution:g})")

    def start(self, job: Job) -> float:
        """Return a rent of 0; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return 0.0

    def decide(self, state: float, view: View) -> tuple[Allocation, float]:
        """Return all spot, or the previous size while the rent is below the threshold."""
        if is_done(view):
            return HOLD_NOTHING, state
        if not view.observed:
            return safety_net(view, HOLD_NOTHING), 0.0
        spot, before = all_spot(view), kept_spot(view)
        if spot.total <= before.total:
            return safety_net(view, spot), 0.0
        rent = _rents(view, before.total, spot.total)
        if state + rent[0] >= self._threshold(view, rent, spot.total):
            return safety_net(view, spot), 0.0
        return safety_net(view, before), state + rent[0]

    def explain(self, state: float, view: View, allocation: Allocation) -> str:
        """Describe pace, slack and spot of the slot, and rent and threshold if the job could grow."""
        spot, before = all_spot(view), kept_spot(view)
        if not view.observed or is_done(view) or spot.total <= before.total:
            return narrate(view, allocation)
        rent = _rents(view, before.total, spot.total)
        mark = self._threshold(view, rent, spot.total)
        lost, so_far = usd(mark), usd(state + rent[0])
        said = f"grows to {spot.total} once not growing has lost {lost} USD, {so_far} USD so far"
        return narrate(view, allocation, rule=said)

    def _threshold(self, view: View, rent: tuple[float, ...], size: int) -> float:
        """Return the rent at which to grow, USD: lambda b if the forecast rents of the season reach b, else b / lambda."""
        price = growth_cost(view, size)
        if sum(rent) >= price:
            return self.caution * price
        return price / self.caution if self.caution > 0.0 else math.inf


def kept_spot(view: View) -> Allocation:
    """Return the previous size on spot alone, cut to the cheap spot available and to the work left.

    Returns nothing if this is below n_min.
    """
    n = min(view.progress.n_previous, all_spot(view).total)
    return cheapest_split(view, n) if n >= view.job.n_min else HOLD_NOTHING


def growth_cost(view: View, size: int) -> float:
    """Return the loss of growing to ``size``, USD: (1 - mu_up) of the slot's work at the least on-demand price."""
    job = view.job
    lost = 1.0 - after_growing(job.restart, size)
    return lost * pace(job, view.slot_hours).gain[size] * work_price(view)


def _rents(view: View, small: int, large: int) -> tuple[float, ...]:
    """Return the losses of ``small`` instead of ``large`` spot, USD, for this slot and each forecast slot of the season."""
    gain, worth = pace(view.job, view.slot_hours).gain, work_price(view)
    window = view.window(slots_left(view))
    rents: list[float] = []
    for price, count in zip(window.price.tolist(), window.available.tolist(), strict=True):
        size = min(large, count)
        saved = (gain[size] - gain[small]) * worth - (size - small) * price * view.slot_hours
        if size <= small or not spot_is_cheaper(price, view.on_demand_usd):
            break
        rents.append(max(0.0, saved))
    return tuple(rents)


def work_price(view: View) -> float:
    """Return the least on-demand price of a work unit, USD: p_o Delta min over n of n / (H(n) Delta)."""
    gain = pace(view.job, view.slot_hours).gain
    least = min(n / gain[n] for n in range(view.job.n_min, view.job.n_max + 1))
    return view.on_demand_usd * view.slot_hours * least
