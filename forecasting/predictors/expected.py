"""Expected counts by ridge regression on the newest readings, pooled over the markets of a source (ours).

Its forecasts are not issued: they say which past situations were like the present one (`count_members`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.panel import Panel
from forecasting.predictors.count_members import in_slots, phases
from forecasting.recent import readings, smoothed
from forecasting.residuals import ahead
from forecasting.series import Series

#: Newest readings that are regressed on.
_LAGS = 12
#: Pull of the coefficients towards "the value stays".
_RIDGE = 0.5
#: How much the mean of all markets' normal equations adds to a market's own.
_POOLED = 3.0
#: Days after which a pair weighs half.
_HALF_LIFE_HOURS = 100.0
#: Only the newest so many slots are estimated on.
_LONGEST_TRAINING = 2000


def regressors(series: Series) -> np.ndarray:
    """Constant, the newest readings and means of late as shares of the cap, and whether at a bound; shape (slots, columns)."""
    seen, per_slot = readings(series)
    known = np.maximum.accumulate(np.where(np.isnan(seen), -1, np.arange(seen.size)))
    held = np.where(known >= 0, seen[np.maximum(known, 0)], 0.0)
    last = np.arange(len(series)) * per_slot + per_slot - 1
    lags = min(_LAGS, 4 * per_slot)
    newest = held[np.maximum(last[:, None] - np.arange(lags), 0)]
    means = np.stack([smoothed(series.values, in_slots(series, h, 2)) for h in (2.0, 6.0, 24.0)], axis=1)
    cap = np.maximum(series.upper, 1.0)[:, None]
    now = newest[:, :1]
    columns = [np.ones_like(now), newest / cap, np.nan_to_num(means) / cap, now == 0, now >= cap]
    return np.concatenate([np.asarray(column, dtype=float) for column in columns], axis=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectations:
    """``coefficients`` of each series key, shape (nodes, columns), at the ``nodes`` (steps ahead); 0 weight on nothing known."""

    nodes: np.ndarray
    coefficients: dict[str, np.ndarray]

    def at(self, steps: np.ndarray) -> Expectations:
        """The same at ``steps`` alone; as it is where one of them lies between the nodes."""
        places = np.searchsorted(self.nodes, steps)
        if places.max() >= self.nodes.size or (self.nodes[places] != steps).any():
            return self
        return Expectations(
            nodes=self.nodes[places],
            coefficients={key: beta[places] for key, beta in self.coefficients.items()},
        )

    def of(self, series: Series, steps: np.ndarray) -> np.ndarray | None:
        """Expected counts 1-based ``steps`` after every slot, shape (slots, steps), between nodes linear; None if not estimated."""
        beta = self.coefficients.get(series.key)
        rows = regressors(series)
        if beta is None or beta.shape[1] != rows.shape[1]:
            return None
        at_nodes = np.clip(rows @ beta.T, 0.0, 1.0) * np.maximum(series.upper, 1.0)[:, None]
        out = np.empty((rows.shape[0], steps.size))
        for j, step in enumerate(steps):
            right = int(np.searchsorted(self.nodes, step))
            high, low = min(right, self.nodes.size - 1), max(min(right, self.nodes.size - 1) - 1, 0)
            gap = max(self.nodes[high] - self.nodes[low], 1)
            share = np.clip((step - self.nodes[low]) / gap, 0.0, 1.0) if high > low else 0.0
            out[:, j] = at_nodes[:, low] * (1 - share) + at_nodes[:, high] * share
        return out


def expectations(panel: Panel, nodes: np.ndarray) -> Expectations:
    """Estimate on all of the panel; markets of one source and one number of readings a slot share what they know."""
    groups: dict[tuple[str, int], list[Series]] = {}
    for series in panel.series:
        if series.observed.size > 2:
            groups.setdefault((series.source, series.within.shape[1]), []).append(series)
    found: dict[str, np.ndarray] = {}
    for members in groups.values():
        sums = [_summed(series, nodes) for series in members]
        left, right = (np.mean([pair[i] for pair in sums], axis=0) for i in (0, 1))
        start = np.zeros(left.shape[-1])
        start[1] = 1.0
        ridge = _RIDGE * np.eye(start.size)
        ridge[0, 0] = 1e-3
        for series, (own_left, own_right) in zip(members, sums, strict=True):
            matrix = own_left + _POOLED * left + ridge
            found[series.key] = (
                start + np.linalg.solve(matrix, (own_right + _POOLED * right)[..., None])[..., 0]
            )
    return Expectations(nodes=nodes, coefficients=found)


def _summed(series: Series, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mean of the normal equations of a series and of its phases."""
    parts = [_normal_equations(one, nodes) for one in (series, *phases(series))]
    left, right = (np.mean([part[i] for part in parts], axis=0) for i in (0, 1))
    return left, right


def _normal_equations(series: Series, nodes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """X'WX (nodes, columns, columns) and X'W(target - value now) (nodes, columns) of the newest slots."""
    series = series.part(max(0, len(series) - _LONGEST_TRAINING), len(series))
    rows, cap = regressors(series), np.maximum(series.upper, 1.0)
    target = ahead(series.values, int(nodes[-1]))[:, nodes - 1]
    weight = 0.5 ** ((len(series) - 1 - np.arange(len(series))) / in_slots(series, _HALF_LIFE_HOURS, 48))
    left, right = [], []
    for j in range(nodes.size):
        known = ~np.isnan(target[:, j]) & ~np.isnan(series.values)
        x, w = rows[known], weight[known]
        gain = target[known, j] / cap[known] - x[:, 1]
        left.append((x * w[:, None]).T @ x)
        right.append((x * w[:, None]).T @ gain)
    return np.stack(left), np.stack(right)
