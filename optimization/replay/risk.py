"""What to expect of a running job: the policy replayed from here over sampled futures (ours)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from optimization.job.definition import Progress
from optimization.job.progress import finished, needed
from optimization.market.belief import Believed
from optimization.market.window import MarketWindow, Record, record_of
from optimization.policies.contract import Paths, Policy, Together, View, belief_of
from optimization.policies.pace import pace, step
from optimization.replay.run import PlanMemo, Seen, checked, run_from, see, settle, with_shared_plans
from optimization.window.plan import Outcome
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


def look_ahead(policy: Policy[S], state: S, view: View, *, paths: int, rng: np.random.Generator) -> Expected:
    """`simulate_ahead` over futures sampled from the belief that ``policy`` plans by, those of M6.9."""
    later = view.job.deadline_slots - view.slot - 1
    return simulate_ahead(policy, state, view, *belief_of(policy, view).sample(later, paths=paths, rng=rng))


def simulate_ahead(
    policy: Policy[S], state: S, view: View, price_paths: np.ndarray, count_paths: np.ndarray
) -> Expected:
    """Replay ``policy`` from its present ``state`` in the slot of ``view`` over sampled futures.

    ``price_paths`` (USD per instance-hour) and ``count_paths`` have shape (paths, slots after this one), at
    least up to the deadline; the slot of ``view`` is as observed. In later slots the policy reads the
    forecast of ``view`` shifted to that slot: one *static vintage*, since what would be issued then is not
    known (ours). So it is with the record of ``view`` and with the belief: what is believed now holds to the
    end, from whatever state a path comes to, which also means that tables are made once. A policy that lives on
    fresh forecasts therefore looks a little worse here than it will be.
    Horizon programs are answered by the exact twin (M3.2) whoever answers them live. A policy that decides `Together` is asked
    once a slot for all paths, with the same outcome. Raises `MarketError` for paths of another shape, `PolicyError` and
    `JobError` as `replay` does.
    """
    prices, counts = _checked(view, np.asarray(price_paths, dtype=float), np.asarray(count_paths))
    beliefs = replace(view.market_beliefs(), held=belief_of(policy, view))
    if isinstance(policy, Together):
        together = _run_together(policy, state, (view, beliefs), prices, counts)
        if together is not None:
            return _summary(view, together)
    twin = with_shared_plans(policy, PlanMemo())
    begin = (view.slot, view.progress)
    futures = _windows(view, beliefs, prices, counts)
    return _summary(view, [run_from(twin, state, view.job, seen, begin) for seen in futures])


def _checked(view: View, prices: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The paths cut at the deadline, shapes (paths, slots after this one)."""
    later = view.job.deadline_slots - view.slot - 1
    if prices.ndim != 2 or prices.shape != counts.shape or prices.shape[1] < later or not prices.shape[0]:
        raise MarketError(
            f"price paths of shape {prices.shape}, count paths of {counts.shape}",
            expected=f"(paths, at least {later}) both, at least one path",
        )
    return prices[:, :later], counts[:, :later].astype(np.int64)


def _run_together(
    policy: Policy[S], state: S, at: tuple[View, Believed], prices: np.ndarray, counts: np.ndarray
) -> list[Outcome] | None:
    """`run_from` on all paths, slot after slot instead of path after path; None where the policy wants to be asked one by one.

    In the slot of ``view`` all paths are one. The steps are those of `replay.step` (M2.4), in the same order of arithmetic.
    """
    view, beliefs = at
    job, d = view.job, view.job.deadline_slots
    seen = _windows(view, beliefs, prices[:1], counts[:1])[0]
    if finished(view.progress.done, job.workload):
        return None
    wish, state = policy.decide(state, seen.view(job, view.progress, view.slot))
    first = step(view.progress, checked(wish, view, policy.name), view)
    paths = len(prices)
    done, before = np.full(paths, first.done), np.full(paths, first.n_previous)
    cost, slots = np.full(paths, first.cost_usd), np.full(paths, d)
    work = np.array(pace(job, view.slot_hours).work)
    running = np.full(paths, True)
    for slot in range(view.slot + 1, d):
        ended = running & (done >= needed(job.workload))
        slots[ended], running = slot, running & ~ended
        if not running.any():
            break
        own = np.flatnonzero(running)
        price, available = prices[own, slot - view.slot - 1], counts[own, slot - view.slot - 1]
        market = Paths(done=done[own], n_previous=before[own], price=price, available=available)
        template = seen.view(job, Progress(done=float(done[own[0]]), n_previous=int(before[own[0]])), slot)
        n = policy.decide_together(state, template, market) if isinstance(policy, Together) else None
        if n is None:
            return None
        spot = np.where(price < view.on_demand_usd, np.minimum(n, available), 0)
        cost[own] += ((n - spot) * view.on_demand_usd + spot * price) * view.slot_hours
        after = done[own] + work[before[own], n]
        done[own] = np.where(after >= needed(job.workload), job.workload, after)
        before[own] = n
    ends = zip(slots.tolist(), done.tolist(), before.tolist(), cost.tolist(), strict=True)
    return [
        settle(policy.name, job, (), (at, Progress(done=work_done, n_previous=held, cost_usd=paid)), seen)
        for at, work_done, held, paid in ends
    ]


def _windows(view: View, beliefs: Believed, prices: np.ndarray, counts: np.ndarray) -> list[Seen]:
    """One prepared market per path; slots before the present one are never read and are filled with it."""
    later = view.job.deadline_slots - view.slot - 1
    past = view.slot + 1
    forecasts = [None] * view.slot + [view.forecast] + [None] * later
    record = _still(view)
    seen = []
    for price, count in zip(prices, counts, strict=True):
        window = MarketWindow(
            price=np.concatenate([np.full(past, view.price), price]),
            available=np.concatenate([np.full(past, view.available), count]).astype(np.int64),
            on_demand_usd=view.on_demand_usd,
            slot_hours=view.slot_hours,
            observed=np.concatenate([np.full(past, view.observed), np.full(later, True)]),
        )
        seen.append(replace(see(view.job, window, forecasts, record), tables=view.tables, beliefs=beliefs))
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
