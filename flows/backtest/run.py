"""Simulation of policies on the stored record of a job's markets, for many start times (M5.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.following import FollowedMarket, step_of
from slackwater.flows.histories import read_all
from slackwater.flows.ledger.rounds import outcome_values
from slackwater.flows.places import placed_in, propose_markets, uncounted_note
from slackwater.flows.show.formats import plural, utc
from slackwater.flows.turn.context import Turn
from slackwater.flows.turn.opening import read_records
from slackwater.flows.turn.pool import deciding_policy, policies_named, read_pool
from slackwater.forecasting.accuracy.intervals import block_interval
from slackwater.optimization.job.definition import check_job
from slackwater.optimization.job.request import JobRequest
from slackwater.optimization.job.units import works_words
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.decision import record_start
from slackwater.optimization.replay.score import ScoredJob, score_job
from slackwater.warehouse.amounts import duration
from slackwater.warehouse.errors import MarketError, SettingsError
from slackwater.warehouse.history import AVAILABLE, PRICE, History

DEFAULT_DAYS = 30  # Default period of the starts, in days
MOST_STARTS = 2000  # Maximum number of starts of a backtest
BASELINES = ("MSU", "UP", "OD-only")  # Policies compared with the leading policy by default
#: Name of the policy that uses on-demand instances only, which needs no replay in several markets.
ON_DEMAND_ONLY = "OD-only"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Simulated outcome of a policy at a start: costs in USD, ``finish`` None if the job was given up.

    ``hindsight_usd`` is the cost of the optimum in the slot model with the market known in advance,
    ``on_demand_only_usd`` is None if no on-demand price is known, ``utility_usd`` (value less cost) for a
    hard deadline. ``on_time`` is None if spot was used without observed availability.
    """

    start: pd.Timestamp
    policy: str
    cost_usd: float
    on_time: bool | None
    finish: pd.Timestamp | None
    spot_share: float
    on_demand_only_usd: float | None
    hindsight_usd: float
    utility_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backtest:
    """Outcomes of all policies at all starts.

    ``left_out`` counts starts whose slots are not all in the record, ``gaps`` the slots without an
    observation, ``slots`` all slots of all runs of a policy. ``model`` is that of `Outcome.model`. ``block``
    is the length of a block of starts with dependent costs.
    """

    job: str
    gpus_per_instance: int | None
    work: str
    markets: tuple[str, ...]
    source: str
    forecaster: str
    policies: tuple[str, ...]
    leader: str
    every: pd.Timedelta
    step: pd.Timedelta
    deadline_slots: int
    block: pd.Timedelta
    runs: tuple[Run, ...]
    left_out: int
    gaps: int
    slots: int
    assumptions: tuple[str, ...]
    model: str
    proposal: str = ""

    def block_of(self, start: pd.Timestamp) -> int:
        """Return the number of the block of a start, from 0."""
        return int((start - self.runs[0].start) // self.block)

    @property
    def blocks(self) -> int:
        """Number of independent blocks of starts."""
        return len({self.block_of(run.start) for run in self.runs})


def backtest(
    turn: Turn,
    request: JobRequest,
    *,
    length: pd.Timedelta,
    market: str | None,
    first: pd.Timestamp | None,
    last: pd.Timestamp | None,
    every: pd.Timedelta,
    policies: Sequence[str],
    progress: Callable[[int, int], None] | None = None,
) -> Backtest:
    """Simulate ``policies`` at starts from ``first`` to ``last``, spaced by ``every``, each with
    ``length`` to its deadline.

    Starts are rounded up to slots; starts whose slots are not all in the record are left out.
    Without ``first`` the starts cover the last `DEFAULT_DAYS` of the record. Forecasts are those
    that would have been issued in each slot. Raises `MarketError` if no start fits into the record,
    `SettingsError` for more than `MOST_STARTS` starts, `PolicyError` and `JobError` like a replay.
    """
    proposal = ""
    if market is None and request.names_no_market:
        request, proposal = propose_markets(turn, request)
    step = step_of(turn.settings)
    floating = of_length(request, length)
    placed, places = placed_in(turn, floating, market=market)
    floating = of_length(placed, length)
    slots = math.floor(length / step + 1e-9)
    wanted = _start_times(
        first, last, every, step=step, latest=min(place.at for place in places) + step - slots * step
    )
    histories = dict(
        zip(places, read_all(turn, [(place, record_start(wanted[0])) for place in places]), strict=True)
    )
    spans = {place: _observed_span(history) for place, history in histories.items()}
    starts = [
        start
        for start in wanted
        if all(span and span[0] <= start and start + (slots - 1) * step <= span[1] for span in spans.values())
    ]
    if not starts:
        raise MarketError(
            f"none of the {len(wanted)} starts from {utc(wanted[0])} to {utc(wanted[-1])} has all its {slots} slots "
            "in the record",
            expected=", ".join(
                f"{place.key}: {f'{utc(span[0])} to {utc(span[1])}' if (span := spans[place]) else 'nothing observed'}"
                for place in places[:3]
            ),
            remedy="choose another --from, or a shorter deadline",
        )
    leader, chosen = _choose_policies(turn, floating, policies)
    grid = sorted({start + k * step for start in starts for k in range(slots)})
    turn.say(f"forecast {plural(len(grid), 'slot')} of {plural(len(places), 'market')}")
    records = read_records(
        turn, dict.fromkeys(places, grid), planner=turn.settings.planner, histories=histories
    )
    runs: list[Run] = []
    gaps = 0
    assumed: dict[str, None] = {}
    for i, start in enumerate(starts):
        ended = records.ended_job(_place_request(floating, places[0], start), start)
        gaps += sum(int(np.count_nonzero(~window.observed[:slots])) for window in ended.windows)
        assumed |= dict.fromkeys(ended.assumptions)
        if any(policy.name != ON_DEMAND_ONLY for policy in chosen):
            check_job(ended.run, uses_spot=True)
        scored = score_job(ended, chosen, with_bounds=False)
        runs += _runs(scored)
        if progress is not None:
            progress(i + 1, len(starts))
    of_markets = [(run, place.market) for run, place in zip(ended.job.runs, places, strict=True)]
    gpus = {job.gpus for job, _ in of_markets}
    return Backtest(
        job=floating.name,
        gpus_per_instance=gpus.pop() if len(gpus) == 1 else None,
        work=works_words(floating, of_markets),
        markets=tuple(place.market.key for place in places),
        source=places[0].source,
        forecaster=turn.settings.planner,
        policies=tuple(policy.name for policy in chosen),
        leader=leader,
        every=every,
        step=step,
        deadline_slots=slots,
        block=max(pd.Timedelta(days=1), slots * step),
        runs=tuple(runs),
        left_out=len(wanted) - len(starts),
        gaps=gaps,
        slots=slots * len(starts) * len(places),
        assumptions=tuple(assumed),
        model=scored.model,
        proposal=proposal or uncounted_note(turn, placed, places),
    )


def length_of(request: JobRequest, now: pd.Timestamp) -> pd.Timedelta:
    """Return the time from a job's start, or from ``now``, to its deadline; raises `JobError` if the deadline has passed."""
    placed = request.with_place(at=now, market=request.market, source=request.source)
    return placed.ends - placed.starts


def of_length(request: JobRequest, length: pd.Timedelta) -> JobRequest:
    """Return the job without a start, with a deadline ``length`` after any start."""
    minutes = length / pd.Timedelta(minutes=1)
    return request.model_copy(update={"start": None, "deadline": None, "deadline_in": f"{minutes:.6f}min"})


def _place_request(request: JobRequest, place: FollowedMarket, start: pd.Timestamp) -> JobRequest:
    own = request.model_copy(update={"start": start.to_pydatetime()})
    placed = own.with_place(at=start, market=place.market.key, source=place.source)
    # A multi-market job has no home unless its file names one.
    return (
        placed.model_copy(update={"market": request.market, "source": request.source})
        if request.may_move
        else placed
    )


def _start_times(
    first: pd.Timestamp | None,
    last: pd.Timestamp | None,
    every: pd.Timedelta,
    *,
    step: pd.Timedelta,
    latest: pd.Timestamp,
) -> list[pd.Timestamp]:
    """Return the starts from ``first`` to ``last``, on slots; ``latest`` is the last start with its deadline within the record."""
    if every < step:
        raise SettingsError(f"--every {duration(every)}", expected=f"at least a slot of {duration(step)}")
    last = latest if last is None else last
    first = (last - pd.Timedelta(days=DEFAULT_DAYS) if first is None else first).ceil(step)
    if first > last:
        raise SettingsError(
            f"a first start at {first} and a last start at {last}",
            expected="the first before the last; a start needs all its slots in the record",
            remedy="choose an earlier --from, or a shorter deadline",
        )
    count = (last - first) // every + 1
    if count > MOST_STARTS:
        raise SettingsError(
            f"{count:,} starts",
            expected=f"at most {MOST_STARTS:,}",
            remedy="choose a longer --every or a shorter time between --from and --to",
        )
    return list(dict.fromkeys(start.ceil(step) for start in pd.date_range(first, last, freq=every)))


def _observed_span(history: History) -> tuple[pd.Timestamp, pd.Timestamp] | None:
    """Return the first and the last slot with price and availability, None if there is none."""
    slots = history.frame[[PRICE, AVAILABLE]].dropna().index
    return (slots[0], slots[-1]) if len(slots) else None


def _choose_policies(turn: Turn, request: JobRequest, names: Sequence[str]) -> tuple[str, list[Any]]:
    """Return the name of the policy that a turn would use now, and the policies to simulate."""
    if not request.checkpoint.resumable:
        return ON_DEMAND_ONLY, [OnDemandOnly()]
    if request.may_move:
        leader = read_pool(turn).deciders([turn.at])[0].of(request)[0].name
        return leader, policies_named(turn, request, list(names) or ["all"])
    leading = deciding_policy(turn)[0]
    pool = policies_named(turn, request, names) or [leading, *map(policy_named, BASELINES)]
    return leading.name, list({policy.name: policy for policy in pool}.values())


def _runs(scored: ScoredJob) -> Iterator[Run]:
    ended, step = scored.ended, pd.Timedelta(hours=scored.ended.slot_hours)
    known = {"valued": not ended.run.must_finish, "observed": ended.availability_observed}
    for outcome in scored.outcomes:
        values = outcome_values(outcome, ended.start, step, **known)
        del values["model"]
        yield Run(
            start=ended.start,
            on_demand_only_usd=scored.ledger[0].on_demand_only_usd if scored.on_demand_known else None,
            hindsight_usd=scored.hindsight_usd,
            **values,
        )


# ---
# Summary of the runs.


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary of a policy over all starts; costs in USD, shares relative to the cost of on-demand only.

    ``saved_low`` and ``saved_high`` are the 95 % interval of ``saved_share`` over blocks of starts, None for
    fewer than `slackwater.forecasting.accuracy.intervals.LEAST_BLOCKS` blocks. Savings are over the finished jobs
    (M12.16), None without one or without an on-demand price. ``late`` is None if it is unknown for any start whether
    the job was on time.
    """

    policy: str
    starts: int
    mean_cost_usd: float
    worst_cost_usd: float
    worst_start: pd.Timestamp
    late: int | None
    given_up: int
    saved_usd: float | None
    saved_share: float | None
    saved_low: float | None
    saved_high: float | None
    mean_utility_usd: float | None
    spot_share: float


def summaries(found: Backtest) -> list[Summary]:
    """Return a summary of each policy: by value less cost; of a job without a value by missed deadlines, then by mean cost."""
    rows = [
        _summary(name, [run for run in found.runs if run.policy == name], found) for name in found.policies
    ]
    return sorted(rows, key=_rank)


def _rank(row: Summary) -> tuple[float, float]:
    if row.mean_utility_usd is not None:
        return -row.mean_utility_usd, row.mean_cost_usd
    return row.late or 0, row.mean_cost_usd


def _summary(name: str, runs: Sequence[Run], found: Backtest) -> Summary:
    cost = np.array([run.cost_usd for run in runs])
    done = [run for run in runs if run.finish is not None]
    compared = np.array([run.cost_usd for run in done])
    alone = np.array([np.nan if run.on_demand_only_usd is None else run.on_demand_only_usd for run in done])
    known = bool(done) and bool(np.isfinite(alone).all())
    utility = [run.utility_usd for run in runs if run.utility_usd is not None]
    low = high = math.nan
    if known:
        block = np.array([found.block_of(run.start) for run in done])
        block -= block.min()
        paid = np.bincount(block, weights=compared)[:, None]
        base = np.bincount(block, weights=alone)[:, None]
        low, high = (float(end[0]) for end in block_interval(paid[base[:, 0] > 0], base[base[:, 0] > 0]))
    worst = int(cost.argmax())
    return Summary(
        policy=name,
        starts=len(runs),
        mean_cost_usd=float(cost.mean()),
        worst_cost_usd=float(cost[worst]),
        worst_start=runs[worst].start,
        late=None if any(run.on_time is None for run in runs) else sum(not run.on_time for run in runs),
        given_up=len(runs) - len(done),
        saved_usd=float((alone - compared).mean()) if known else None,
        saved_share=float(1.0 - compared.sum() / alone.sum()) if known else None,
        saved_low=low if math.isfinite(low) else None,
        saved_high=high if math.isfinite(high) else None,
        mean_utility_usd=float(np.mean(utility)) if utility else None,
        spot_share=float(np.mean([run.spot_share for run in runs])),
    )
