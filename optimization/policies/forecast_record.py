"""How far off the forecasts of this job have been so far, step by step ahead, beside holding the present (M6.5) (ours).

Views hold point forecasts, and the same forecasts may come from a store, be perfect or be made wrong on purpose. So a
policy that asks how good they are measures them itself: it keeps what was said of the next slots and looks at what then
came.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from optimization.market.window import Past
from optimization.policies.contract import View

#: Share of what was learned that a slot later still counts: half of it is gone after about eleven slots.
MEMORY = 0.94
#: Slots of the record before the job that say how restless the market is, and how many observations they count for.
PRIOR_SLOTS, PRIOR_WEIGHT = 48, 4.0

Ahead = tuple[tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean absolute errors by step ahead, element k - 1 for k slots: prices in USD per instance-hour, counts in instances.

    ``weight`` is the number of observations behind them, discounted.
    """

    price: tuple[float, ...]
    count: tuple[float, ...]
    weight: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ForecastRecord:
    """What was forecast for the slots to come, and how far off such forecasts were; a plain value.

    ``issued`` and ``seen`` hold the last slots, newest last: (slot, forecast) and (slot, price, count). ``forecast`` are
    the errors of the forecasts, ``held`` those of saying that the present stays.
    """

    issued: tuple[tuple[int, Ahead], ...] = ()
    seen: tuple[tuple[int, float, float], ...] = ()
    forecast: Errors | None = None
    held: Errors | None = None


def noted(record: ForecastRecord, view: View, steps: int) -> ForecastRecord:
    """The record with the slot of ``view`` noted: what was said of it is scored, what is said now is kept for later.

    Up to ``steps`` slots ahead. A gap scores nothing. Without a forecast the present is held, as `View.window` does.
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
    """The next ``steps`` slots as forecast; counts above what the job can hold say nothing more to it."""
    forecast, most = view.forecast, view.job.n_max
    if forecast is None or not len(forecast.price):
        count = float(min(view.available, most))
        return (view.price,) * steps, (count,) * steps
    price = [float(p) for p in forecast.price[:steps].tolist()]
    counts = [float(min(c, most)) for c in forecast.available[:steps].tolist()]
    short = steps - len(price)
    return (*price, *price[-1:] * short), (*counts, *counts[-1:] * short)


def _scored(errors: Errors, said: dict[int, tuple[float, float]], came: tuple[float, float]) -> Errors:
    """``errors`` with what was said ``k`` slots before of what came, for every k."""
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
    """Mean absolute change over k slots of the record before the job; nothing known (weight 0) where there is none.

    It is what both ways of looking ahead begin with: a forecast is thought no better than holding until it has shown so.
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
    """What errors of this size cost in a slot, USD, by step ahead (ours).

    A spot instance that does not come is bought on demand, or one that comes unexpected is not used: |count| (p_o - p); a
    wrong price is paid on the spot that is there: |price| n.
    """
    dearer = max(0.0, view.on_demand_usd - view.price)
    there = min(view.available, view.job.n_max)
    return tuple(
        (count * dearer + price * there) * view.slot_hours
        for price, count in zip(errors.price, errors.count, strict=True)
    )
