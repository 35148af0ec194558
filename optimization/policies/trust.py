"""Trust in the forecast by a parameter lambda: learning-augmented ski rental for every chance to grow (M10).

After "Optimal robustness-consistency trade-offs for learning-augmented online algorithms" (Wei and Zhang, NeurIPS 2020),
which shows that the rule for ski rental used here is the best of the deterministic ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from optimization.job.definition import Job, check_job
from optimization.kernels.rules import after_growing, spot_is_cheaper
from optimization.policies.contract import View
from optimization.policies.pace import (
    HOLD_NOTHING,
    all_spot,
    is_done,
    narrate,
    pace,
    safety_net,
    slots_left,
    split,
    work_price,
)
from optimization.window.plan import Allocation
from warehouse.amounts import usd
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Trust(lambda): grow to all spot once what staying small has cost passes a threshold set by the forecast (M10).

    The paper's problem is ski rental: rent day by day or buy once, with a predicted length of the season. Here (ours) the
    season is a run of slots with more cheap spot than is held; the rent of a slot is what the spot not taken would have
    saved beside on-demand; to buy is to grow, which costs b = (1 - mu_up) of a slot's work (M2.4). The rule is the known
    one: where the forecast says that the season's rents come to b, buy once ``caution`` b of rent is paid, else only at b
    / ``caution``. So lambda = 0 believes every forecast, lambda = 1 hears none and buys at the break-even point; in
    between one season costs at most 1 + lambda times the best in hindsight if the forecast was right and 1 + 1 / lambda
    times if it was not (for equal rents; ours vary). The last forecast is held to d. Where growing costs nothing all spot
    is taken at once. On-demand is the net's alone.

    State: the rent paid so far this season, USD. Raises `SettingsError` for lambda outside [0, 1].
    """

    caution: float
    name: str = field(init=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.caution <= 1.0:
            raise SettingsError(f"Trust with lambda {self.caution}", expected="a share in [0, 1]")
        object.__setattr__(self, "name", f"Trust({self.caution:g})")

    def start(self, job: Job) -> float:
        """No rent paid; raises `JobError` for a job that cannot resume (M2.7)."""
        check_job(job, uses_spot=True)
        return 0.0

    def decide(self, state: float, view: View) -> tuple[Allocation, float]:
        """All spot, or the size before while the rent has not passed the threshold."""
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
        """Pace, slack and spot of the slot, and rent and threshold where growing is in question."""
        spot, before = all_spot(view), kept_spot(view)
        if not view.observed or is_done(view) or spot.total <= before.total:
            return narrate(view, allocation)
        rent = _rents(view, before.total, spot.total)
        mark = self._threshold(view, rent, spot.total)
        lost, so_far = usd(mark), usd(state + rent[0])
        said = f"growth to {spot.total} is worth it at {lost} USD lost by staying, {so_far} so far"
        return narrate(view, allocation, rule=said)

    def _threshold(self, view: View, rent: tuple[float, ...], size: int) -> float:
        """The rent at which to grow, USD: lambda b if the forecast season is worth b, else b / lambda."""
        price = growth_cost(view, size)
        if sum(rent) >= price:
            return self.caution * price
        return price / self.caution if self.caution > 0.0 else math.inf


def kept_spot(view: View) -> Allocation:
    """The size before as spot alone, where that much cheap spot is still there and it is not too much; else nothing."""
    n = min(view.progress.n_previous, all_spot(view).total)
    return split(view, n) if n >= view.job.n_min else HOLD_NOTHING


def growth_cost(view: View, size: int) -> float:
    """What growing to ``size`` loses, USD: (1 - mu_up) of its slot's work at the least on-demand price of work."""
    job = view.job
    lost = 1.0 - after_growing(job.restart, size)
    return lost * pace(job, view.slot_hours).gain[size] * work_price(view)


def _rents(view: View, small: int, large: int) -> tuple[float, ...]:
    """What ``small`` instead of ``large`` spot loses in this slot and in each forecast one until the season's end, USD."""
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
