"""A policy and a predictor of your own, as small as they can be; the notebook `first_plan.ipynb` runs them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.forecasting import Predictor, Series
from slackwater.forecasting.predictor import Outlook, each_alone, stored
from slackwater.forecasting.quantiles import LEVELS
from slackwater.optimization import Allocation, Job, View


@dataclass(frozen=True)
class CheapSpot:
    """Policy that runs cheap spot, and on-demand at full size once the remaining slots just suffice."""

    share: float = 0.5
    name: str = "CheapSpot"

    def start(self, job: Job) -> None:
        """Return the state before the first slot; this policy has none."""

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        """Return the instances of this slot."""
        job, most = view.job, view.job.n_max
        work_left = job.workload - view.progress.done
        slots_needed = work_left / (job.throughput.rate(most) * view.slot_hours) + 2  # 2: restart, safety
        if work_left <= 0:
            return Allocation(on_demand=0, spot=0), None
        if slots_needed >= job.deadline_slots - view.slot:
            return Allocation(
                on_demand=most - min(view.available, most), spot=min(view.available, most)
            ), None
        spot = min(view.available, most) if view.price <= self.share * view.on_demand_usd else 0
        return Allocation(on_demand=0, spot=spot if spot >= job.n_min else 0), None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        """Return the reason."""
        return f"spot costs {view.price / view.on_demand_usd:.2f} of on-demand"


@stored("own_ideas.Climate")
@dataclass(frozen=True)
class Climate:
    """Model of a series whose every later value is a draw from all past values."""

    quantiles: tuple[float, ...] = ()

    def fit(self, series: Series) -> Climate:
        """Return the quantiles of the observed values."""
        known = series.values[np.isfinite(series.values)]
        return Climate(quantiles=tuple(np.quantile(known, LEVELS)) if known.size else (0.0,) * len(LEVELS))

    def outlook(self, series: Series, origins: np.ndarray, horizon: int) -> Outlook:
        """Return the same quantiles for every origin and step."""
        quantiles = np.broadcast_to(self.quantiles, (len(origins), horizon, len(LEVELS)))
        return Outlook(quantiles=quantiles, mean=quantiles.mean(axis=2), reasons=("",) * len(origins))


def climate() -> Predictor:
    """Return the predictor of prices and counts."""
    return each_alone("climate", price=Climate(), count=Climate())
