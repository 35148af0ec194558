"""Jobs, markets and requests for tests, each with plain defaults: a test names only the fields that it is about.

The usual job does 40 units of work in 10 slots on 1 to 8 instances and is worth $100. The usual
market has 4 spot instances at $0.50 beside on-demand at $1, in slots of an hour. The usual request
asks for 20 instance-hours within 6 hours on at most 8 instances.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slackwater.optimization.job.definition import Job, Linear, Progress
from slackwater.optimization.job.markets import even_moving
from slackwater.optimization.job.request import JobRequest, parse_request
from slackwater.optimization.market.window import MarketWindow, Past, Record, market_window, record_of
from slackwater.optimization.moving.definition import MarketsJob, MarketsView, in_one_market, placement
from slackwater.optimization.policies.contract import Policy, View, belief_of, plans_in_world
from slackwater.optimization.replay.ahead import PolicyPlan, PresentJob
from slackwater.optimization.replay.guard import Guard
from slackwater.optimization.replay.run import check_allocation
from slackwater.optimization.world.simulation import Readings, WorldMarkets, WorldRun, WorldTerms
from slackwater.optimization.world.terms import world_terms
from slackwater.warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History, Market

if TYPE_CHECKING:
    from slackwater.flows.config import Settings
    from slackwater.flows.turn.context import Turn
    from slackwater.warehouse.store.connection import Store

START = pd.Timestamp("2025-10-04", tz="UTC")
HALF_HOUR = pd.Timedelta(minutes=30)
MARKET = Market(provider="aws", region="us-east-1", zone="us-east-1a", instance_type="p3.2xlarge")

#: A number for all slots, or one number a slot with NaN in gaps.
Values = float | Sequence[float] | np.ndarray

_JOB = Job(name="job", workload=40, deadline_slots=10, n_min=1, n_max=8, throughput=Linear(), value=100)


def make_job(**changes: Any) -> Job:
    """Return the usual job with ``changes`` to any field of `Job`."""
    return replace(_JOB, **changes)


def make_multi_job(
    job: Job | None = None,
    markets: int = 3,
    *,
    taken: float = 0.3,
    usd: float | Sequence[float] = 0.5,
    home: int | None = None,
) -> MarketsJob:
    """Return a job that runs alike in each of ``markets``; a move takes a share of a slot and costs USD, perhaps by slot."""
    runs = (job or make_job(),) * markets
    return MarketsJob(runs=runs, moving=even_moving(markets, taken=taken, usd=usd), home=home)


class RestartByGroup(WorldTerms):
    """Terms in the world with a restart that takes its time for each instance of the group."""

    def restart_seconds(self, n: int) -> float:
        """Return the restart of a group of ``n``."""
        return self.restart * n


def save_run(store: Store, run: str, *, at: pd.Timestamp, stage: str, details: Any, **changes: Any) -> None:
    """Record that a stage of a run is done."""
    from slackwater.flows.ledger.stages import RunRow, save_runs

    save_runs(store, [RunRow(run=run, at=at, stage=stage, details=details, **changes)])


def make_window(
    price: Values = 0.5,
    available: Values = 4,
    *,
    slots: int = 10,
    on_demand_usd: float = 1.0,
    slot_hours: float = 1.0,
    **changes: Any,
) -> MarketWindow:
    """Return a window of a market; ``slots`` counts only if price and available are single numbers."""
    prices, counts = _per_slot(price, available, slots)
    return market_window(prices, counts, on_demand_usd=on_demand_usd, slot_hours=slot_hours, **changes)


def make_record(
    price: Values = 0.5,
    available: Values = 4,
    *,
    first: int,
    slots: int = 10,
    slot_hours: float = 1.0,
    **changes: Any,
) -> Record:
    """Return the record of a market in which slot ``first`` is slot 0 of the job."""
    prices, counts = _per_slot(price, available, slots)
    return record_of(prices, counts, first=first, slot_hours=slot_hours, **changes)


def make_past(
    price: Values = 0.5,
    available: Values = 4,
    *,
    slots: int = 10,
    peers: Sequence[Sequence[float]] | np.ndarray = (),
    **changes: Any,
) -> Past:
    """Return what is known of a market up to the present slot, and the counts of its ``peers``."""
    prices, counts = _per_slot(price, available, slots)
    others = np.asarray(peers, dtype=float).reshape(len(peers), len(prices))
    return Past(price=prices, available=counts, peers=others, **changes)


def make_view(job: Job | None = None, *, done: float = 0.0, n_previous: int = 0, **changes: Any) -> View:
    """Return the view of a job in slot 0 of the usual market, with ``changes`` to any field of `View`."""
    fields = {
        "progress": Progress(done=done, n_previous=n_previous),
        "slot": 0,
        "price": 0.5,
        "available": 4,
        "observed": True,
        "on_demand_usd": 1.0,
        "slot_hours": 1.0,
    }
    return View(job=job or make_job(), **{**fields, **changes})


def world_run(terms: WorldTerms | WorldMarkets, readings: Any, start: float = 0.0) -> WorldRun:
    """Return a run in the world, also of a job in a single market with its terms and readings."""
    if isinstance(terms, WorldTerms):
        terms = WorldMarkets(terms=(terms,), move_usd=np.zeros((1, 1)))
    return WorldRun(terms, (readings,) if isinstance(readings, Readings) else readings, start)


def present_of(policy: Policy[Any], view: View, state: Any = None) -> PresentJob:
    """Return a job at its decision in slot 0 of its run, on a policy's own target under the guard."""
    state = policy.start(view.job) if state is None else state
    sold = view.on_demand.sold
    terms = world_terms(view.job, on_demand_usd=view.on_demand_usd, slot_hours=view.slot_hours, sold=sold)
    now = view.slot * view.slot_hours * 3600.0
    readings = Readings(
        times=np.array([now]), available=np.array([view.available]), price=np.array([view.price])
    )
    run = world_run(terms, readings, now)
    if view.progress.done or view.progress.n_previous:
        run.report(now, work=view.progress.done, size=view.progress.n_previous)
    whole = MarketsView(
        job=in_one_market(view.job, sold=sold), progress=view.progress, slot=view.slot, views=(view,)
    )  # fmt: skip
    guard, plan = Guard.of(whole, run), view
    if plans_in_world(policy):
        plan = guard.in_world().views[0]
    wish = check_allocation(policy.decide(state, plan)[0], view, policy.name)
    return PresentJob(
        view=whole,
        run=run,
        beliefs=[belief_of(policy, view)],
        planner=PolicyPlan(policy=policy, state=state, view=plan, job=whole.job),
        target=guard.allow(placement(0, wish)),
    )


def make_history(
    price: Values = 1.0,
    available: Values = 4,
    *,
    slots: int = 48,
    start: pd.Timestamp = START,
    step: pd.Timedelta = HALF_HOUR,
    known_at: Any = None,
    **changes: Any,
) -> History:
    """Return a history; by default each row is known when its slot begins, and on-demand costs $3.06.

    ``capacity`` is the largest count unless given, ``known_at`` one time a row.
    """
    prices, counts = _per_slot(price, available, slots)
    index = pd.date_range(start, periods=len(counts), freq=step)
    frame = pd.DataFrame({PRICE: prices, AVAILABLE: counts}, index=index)
    frame[ROW_KNOWN_AT] = index if known_at is None else known_at
    seen = counts[~np.isnan(counts)]
    fields = {
        "market": MARKET,
        "known_at": max(frame[ROW_KNOWN_AT].max(), index[-1]) if len(index) else start,
        "on_demand_usd": 3.06,
        "capacity": int(seen.max()) if seen.size else 0,
        "source": "test",
    }
    return History(step=step, frame=frame, **{**fields, **changes})


def request_terms(**changes: Any) -> dict[str, Any]:
    """Return the content of a job file with ``changes``; a key that is None is left out."""
    terms = {
        "name": "job",
        "deadline_in": "6h",
        "n_min": 1,
        "n_max": 8,
        "workload": {"amount": 20.0, "unit": "instance_hours"},
        "throughput": {"form": "linear"},
        "checkpoint": {"resumable": True, "overhead_minutes": 3},
    }
    return {key: value for key, value in (terms | changes).items() if value is not None}


def job_text(name: str = "job", **changes: Any) -> str:
    """Return a job file as TOML, with ``changes`` as in `request_terms`."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in request_terms(name=name, **changes).items())


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + " }"
    return value.isoformat() if isinstance(value, pd.Timestamp) else json.dumps(value)


def checkpoint(minutes: float) -> dict[str, Any]:
    """Return the checkpoint of a job that resumes after ``minutes``."""
    return {"resumable": True, "overhead_minutes": minutes}


def work(amount: float, unit: str = "instance_hours") -> dict[str, Any]:
    """Return the workload of a job."""
    return {"amount": amount, "unit": unit}


def make_request(
    name: str = "job",
    *,
    at: pd.Timestamp = START,
    market: str | None = MARKET.key,
    source: str | None = None,
    **terms: Any,
) -> JobRequest:
    """Return a request that was placed on a market at a time, with changed ``terms`` of its job file."""
    request = parse_request(request_terms(name=name, **terms), "test")
    return request.with_place(at=at, market=market, source=source)


def make_turn(store: Store, at: pd.Timestamp, settings: Settings, **changes: Any) -> Turn:
    """Return the turn of a time, with ``changes`` to any field of `Turn`."""
    from slackwater.flows.turn.context import Turn, run_id_of

    return Turn(**{"store": store, "at": at, "settings": settings, "run_id": run_id_of(at), **changes})


def _per_slot(price: Values, available: Values, slots: int) -> tuple[np.ndarray, np.ndarray]:
    """Return price and count of each slot; a single number holds in all slots."""
    prices, counts = np.asarray(price, dtype=float), np.asarray(available, dtype=float)
    shape = np.broadcast_shapes(prices.shape, counts.shape) or (slots,)
    return np.broadcast_to(prices, shape).copy(), np.broadcast_to(counts, shape).copy()


def least_time(job):
    """Return the seconds that a job in the world takes on on-demand alone, from the request, in its fastest market."""
    terms = getattr(job, "terms", (job,))
    home = getattr(job, "home", None)
    return min(
        one.new_seconds(one.fastest)
        + one.workload / max(one.rates) * 3600.0
        + (0.0 if home in (None, m) else job.transfer)
        for m, one in enumerate(terms)
        if one.sold
    )
