"""What to expect of a running job: the policy replayed from here over sampled futures (ours)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from optimization.market import MarketWindow, Record, record_of
from optimization.plan import Outcome
from optimization.policy import Policy, View
from optimization.replay import PlanMemo, Seen, run_from, see, with_shared_plans
from warehouse.errors import MarketError

S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Expected end of a running job over ``paths`` sampled futures.

    ``cost_usd`` is the mean of everything paid from the first slot to the last, termination included (M2.6),
    with quantiles ``cost_p10_usd`` and ``cost_p90_usd``. ``finish_slots`` (mean) and ``finish_median`` count
    slots from the job's first; a path on which the job is given up counts as gamma d, when it is worth
    nothing. ``finish`` holds every path's finish, shape (paths,), NaN where given up. ``late_probability`` is
    P(not finished by d), ``given_up_probability`` P(given up).
    """

    paths: int
    cost_usd: float
    cost_p10_usd: float
    cost_p90_usd: float
    finish_slots: float
    finish_median: float
    finish: np.ndarray
    late_probability: float
    given_up_probability: float
    utility_usd: float


def simulate_ahead(
    policy: Policy[S], state: S, view: View, price_paths: np.ndarray, count_paths: np.ndarray
) -> Expected:
    """Replay ``policy`` from its present ``state`` in the slot of ``view`` over sampled futures.

    ``price_paths`` (USD per instance-hour) and ``count_paths`` have shape (paths, slots after this one), at
    least up to the deadline; the slot of ``view`` is as observed. In later slots the policy reads the
    forecast of ``view`` shifted to that slot: one *static vintage*, since what would be issued then is not
    known (ours). So it is with the record of ``view``: what the policy has learned by now, it goes by to the end, on all paths
    alike, which also means that tables are made once. A policy that lives on fresh forecasts therefore looks a little worse here
    than it will be.
    Horizon programs are answered by the exact twin (M3.2) whoever answers them live. Raises `MarketError` for
    paths of another shape, `PolicyError` and `JobError` as `replay` does.
    """
    futures = _windows(view, np.asarray(price_paths, dtype=float), np.asarray(count_paths))
    twin = with_shared_plans(policy, PlanMemo())
    begin = (view.slot, view.progress)
    return _summary(view, [run_from(twin, state, view.job, seen, begin) for seen in futures])


def _windows(view: View, prices: np.ndarray, counts: np.ndarray) -> list[Seen]:
    """One prepared market per path; slots before the present one are never read and are filled with it."""
    later = view.job.deadline_slots - view.slot - 1
    if prices.ndim != 2 or prices.shape != counts.shape or prices.shape[1] < later or not prices.shape[0]:
        raise MarketError(
            f"price paths of shape {prices.shape}, count paths of {counts.shape}",
            expected=f"(paths, at least {later}) both, at least one path",
        )
    past = view.slot + 1
    forecasts = [None] * view.slot + [view.forecast] + [None] * later
    record = _still(view)
    tables = {} if view.tables is None else view.tables
    seen = []
    for price, count in zip(prices[:, :later], counts[:, :later], strict=True):
        window = MarketWindow(
            price=np.concatenate([np.full(past, view.price), price]),
            available=np.concatenate([np.full(past, view.available), count]).astype(np.int64),
            on_demand_usd=view.on_demand_usd,
            slot_hours=view.slot_hours,
            observed=np.concatenate([np.full(past, view.observed), np.full(later, True)]),
        )
        seen.append(replace(see(view.job, window, forecasts, record), tables=tables))
    return seen


def _still(view: View) -> Record | None:
    """The record of ``view``, held still at its slot."""
    past = view.past
    if past is None:
        return None
    end = len(past.price) - 1
    begins = None if past.hour is None else (past.hour - end * view.slot_hours) % 24.0
    return record_of(
        past.price,
        past.available,
        first=end - view.slot,
        slot_hours=view.slot_hours,
        peers=past.peers,
        hour=begins,
        still=True,
    )


def _summary(view: View, outcomes: list[Outcome]) -> Expected:
    job = view.job
    cost = np.array([outcome.total_cost_usd for outcome in outcomes])
    finish = np.array([np.nan if o.finish_slots is None else o.finish_slots for o in outcomes], dtype=float)
    counted = np.where(np.isnan(finish), job.late_limit, finish)
    return Expected(
        paths=len(outcomes),
        cost_usd=float(cost.mean()),
        cost_p10_usd=float(np.quantile(cost, 0.1)),
        cost_p90_usd=float(np.quantile(cost, 0.9)),
        finish_slots=float(counted.mean()),
        finish_median=float(np.median(counted)),
        finish=finish,
        late_probability=float(np.mean(counted > job.deadline_slots)),
        given_up_probability=float(np.isnan(finish).mean()),
        utility_usd=float(np.mean([outcome.utility_usd for outcome in outcomes])),
    )
