"""Errors of the forecasts of this job so far, by lead time, compared with persistence (M6.5) (ours).

Views hold point forecasts, which may be stored, perfect or deliberately wrong. A policy that
depends on their accuracy therefore measures it: it stores the forecasts of the next slots and
compares them with the later observations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slackwater.optimization.market.window import Past
from slackwater.optimization.policies.contract import View

#: Weight of an observation one slot later; the weight halves after about eleven slots.
MEMORY = 0.94
#: Number of slots before the job that give the prior errors, and the number of observations they
#: count for.
PRIOR_SLOTS, PRIOR_WEIGHT = 48, 4.0

Ahead = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute errors by lead time; element k - 1 is a lead of k slots.

    Prices are in USD per instance-hour, counts in instances. ``weight`` is the discounted number of
    observations.
    """

    price: tuple[float, ...]
    count: tuple[float, ...]
    weight: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ForecastRecord:
    """Recent forecasts and observations with the mean forecast errors; an immutable value.

    ``issued`` holds (slot, forecast) and ``seen`` (slot, price, count) of the last slots, newest
    last. ``forecast`` are the errors of the forecasts, ``held`` the errors of persistence (the
    present values repeated).
    """

    issued: tuple[tuple[int, Ahead], ...] = ()
    seen: tuple[tuple[int, float, float], ...] = ()
    forecast: Errors | None = None
    held: Errors | None = None


def noted(record: ForecastRecord, view: View, steps: int) -> ForecastRecord:
    """Return the record updated with the slot of ``view``: earlier forecasts are scored, the new forecast stored.

    Covers lead times of up to ``steps`` slots. In a gap nothing is scored. Without a forecast the
    present values are repeated, as in `View.window`.
    """
    if record.forecast is None or record.held is None:
        start = _restlessness(view.past, view.job.n_max, steps)
        record = replace(record, forecast=start, held=start)
    forecast, held = record.forecast, record.held
    if view.observed and forecast is not None and held is not None:
        now = (view.price, float(min(view.available, view.job.n_max)))
        said = {view.slot - slot: ahead for slot, ahead in record.issued}
        was = {view.slot - slot: (price, count) for slot, price, count in record.seen}
        forecast = _scored(forecast, {k: (p[k - 1], c[k - 1]) for k, (p, c) in said.items()}, now)
        held = _scored(held, was, now)
    oldest = view.slot - steps
    issued, seen = record.issued, record.seen
    if view.observed:
        issued = (*issued, (view.slot, _ahead(view, steps)))
        seen = (*seen, (view.slot, view.price, float(min(view.available, view.job.n_max))))
    return ForecastRecord(
        issued=tuple(one for one in issued if one[0] > oldest),
        seen=tuple(one for one in seen if one[0] > oldest),
        forecast=forecast,
        held=held,
    )


def _ahead(view: View, steps: int) -> Ahead:
    """Return prices and counts forecast for the next ``steps`` slots; counts are capped at the job's n_max."""
    forecast, most = view.forecast, view.job.n_max
    if forecast is None or not len(forecast.price):
        count = float(min(view.available, most))
        return (view.price,) * steps, (count,) * steps
    price = [float(p) for p in forecast.price[:steps].tolist()]
    counts = [float(min(c, most)) for c in forecast.available[:steps].tolist()]
    short = steps - len(price)
    return (*price, *price[-1:] * short), (*counts, *counts[-1:] * short)


def _scored(errors: Errors, said: dict[int, tuple[float, float]], came: tuple[float, float]) -> Errors:
    """Update the mean error of each lead time k with the error of the forecast issued k slots earlier."""
    price, count, weight = list(errors.price), list(errors.count), list(errors.weight)
    for k, (said_price, said_count) in said.items():
        if not 1 <= k <= len(weight):
            continue
        total = MEMORY * weight[k - 1] + 1.0
        price[k - 1] += (abs(said_price - came[0]) - price[k - 1]) / total
        count[k - 1] += (abs(said_count - came[1]) - count[k - 1]) / total
        weight[k - 1] = total
    return Errors(tuple(price), tuple(count), tuple(weight))


def _restlessness(past: Past | None, most: int, steps: int) -> Errors:
    """Return the mean absolute change over k slots of the history before the job; weight 0 without a history.

    It is the prior error of both the forecasts and persistence: a forecast counts as no better than
    persistence until its record shows otherwise.
    """
    nothing = (0.0,) * steps
    if past is None or len(past.price) < 2:
        return Errors(nothing, nothing, nothing)
    price, count = past.price[-PRIOR_SLOTS - 1 :], np.minimum(past.available[-PRIOR_SLOTS - 1 :], most)
    changes = [(_mean_change(price, k), _mean_change(count, k)) for k in range(1, steps + 1)]
    return Errors(
        tuple(p for p, _ in changes),
        tuple(c for _, c in changes),
        tuple(PRIOR_WEIGHT if len(price) > k else 0.0 for k in range(1, steps + 1)),
    )


def _mean_change(values: np.ndarray, k: int) -> float:
    change = np.abs(values[k:] - values[:-k]) if len(values) > k else np.zeros(0)
    known = change[~np.isnan(change)]
    return float(known.mean()) if len(known) else 0.0


def usd_per_slot(errors: Errors, view: View) -> tuple[float, ...]:
    """Return the cost of such forecast errors in a slot, USD, by lead time (ours).

    A missing spot instance is replaced on demand, an unexpected instance is not used: |count| (p_o
    - p). A wrong price is paid for the available spot: |price| n.
    """
    dearer = max(0.0, view.on_demand_usd - view.price)
    there = min(view.available, view.job.n_max)
    return tuple(
        (count * dearer + price * there) * view.slot_hours
        for price, count in zip(errors.price, errors.count, strict=True)
    )
