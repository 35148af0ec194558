"""A third-party predictor: one file, and one line in a dict (CONTRIBUTING)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackwater.forecasting.predictor import Outlook, Panel, stored
from slackwater.forecasting.quantiles import LEVELS


@dataclass(frozen=True)
class Drift:
    """Predictor of the newest value plus the mean change of all training markets, with the spread of their changes."""

    name: str = "others_drift"
    pooled: bool = True

    def fit(self, panel: Panel) -> FittedDrift:
        changes = np.concatenate([np.diff(one.values) for one in panel.series])
        known = changes[np.isfinite(changes)]
        if known.size < 2:
            return FittedDrift(drift=0.0, spread=np.zeros(LEVELS.size), reason="too few changes")
        spread = np.quantile(known, LEVELS) - known.mean()
        return FittedDrift(drift=float(known.mean()), spread=spread, reason="")


@stored("others_drift")
@dataclass(frozen=True)
class FittedDrift:
    drift: float
    spread: np.ndarray
    reason: str

    def outlook(self, panel: Panel, which: int, origins: np.ndarray, horizon: int) -> Outlook:
        series = panel.series[which]
        steps = np.arange(1, horizon + 1)
        age = series.age(origins)
        mean = series.last(origins)[:, None] + self.drift * (age[:, None] + steps)
        old = [f"newest value is {a} slots old" if a > 12 else "" for a in age]
        return Outlook(
            quantiles=mean[..., None] + np.sqrt(steps)[:, None] * self.spread,
            mean=mean,
            reasons=tuple("; ".join(part for part in (one, self.reason) if part) for one in old),
        )


def drift() -> Drift:
    return Drift()
