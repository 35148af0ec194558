"""Inputs of the stages of a turn: warehouse, time and settings; markets and histories; jobs and policy pool (M1.2)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, Generic, TypeVar, cast

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.ledger.jobs import Freshness, StoredJob, save_jobs, stored_jobs, unreadable_jobs
from slackwater.flows.ledger.records import LIVE, RunRow, failure_kept, stored_rounds
from slackwater.flows.show.formats import listed, plural, rows_of
from slackwater.flows.turn.following import (
    Followed,
    choose_markets,
    counted_or_priced,
    find_market,
    own_time,
    parse_market,
    step_of,
    trust_rank,
)
from slackwater.forecasting.quantiles import Forecast
from slackwater.optimization.job.gpus import gpu_type_of
from slackwater.optimization.job.request import (
    JobRequest,
    check_bounds,
    first_slot,
    on_demand_terms,
    read_request,
    run_on,
)
from slackwater.optimization.job.units import can_run_on, gpus_per_instance, types_without_room, work_amount
from slackwater.optimization.market.lately import LATELY, shown_lately
from slackwater.optimization.moving.adapter import InOneMarket
from slackwater.optimization.moving.definition import MultiMarketPolicy
from slackwater.optimization.moving.score import MULTI_MARKET_POLICIES
from slackwater.optimization.moving.terms import check_types, fits, may_run_in
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import DEFAULT_POOL, load_pool, policy_named
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.decision import Fan, in_turn
from slackwater.optimization.selection.contract import Learner, Weights, weigh
from slackwater.optimization.selection.learned import Rounds, leading
from slackwater.optimization.selection.learners import learner_named
from slackwater.optimization.selection.prior import (
    DEFAULT_PRIOR,
    MeasuredWorld,
    informed,
    prior_rounds,
    read_prior,
)
from slackwater.warehouse.amounts import price
from slackwater.warehouse.asof import (
    HistoryAssumptions,
    HistoryRequest,
    MovingReader,
    Reader,
    Span,
    load_histories,
)
from slackwater.warehouse.errors import (
    HistoryError,
    InputError,
    JobError,
    MarketError,
    PolicyError,
    why_raised,
)
from slackwater.warehouse.history import History, Market
from slackwater.warehouse.issued import read_vintages
from slackwater.warehouse.observations import list_markets, list_markets_at
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds

# ---
# Input of every stage: the warehouse, the logical time, the settings, cached reads, and the parallel map.


#: Number of rows by source and by result (added, repeated or rejected).
Counts = dict[str, dict[str, int]]


class Reads:
    """Cache of the observations for turns at one time or over a span of times; reads each history and listing once (M1.2).

    The results equal those of the store at that time. Create it after the observations of the last
    of the times are ingested.
    """

    def __init__(self, store: Store, span: Span | None = None) -> None:
        self._store = store
        self._times = pd.DatetimeIndex([]) if span is None else span.times()
        self._reader = Reader(store) if span is None else MovingReader(store, span)
        self._listings: dict[pd.Timestamp, pd.DataFrame] = {}
        self._listed: dict[pd.Timestamp, list[dict[str, Any]]] = {}
        self._histories: dict[HistoryRequest, History | MarketError] = {}
        # Stages of a backfill read concurrently.
        self._turn = RLock()

    def listed(self, at: pd.Timestamp) -> list[dict[str, Any]]:
        """Return the rows of `list_markets` as known at a time."""
        with self._turn:
            if at not in self._listings and at in self._times:
                self._listings = list_markets_at(self._store, self._times)
            elif at not in self._listings:
                self._listings[at] = list_markets(self._store, known_at=at)
            if at not in self._listed:
                self._listed[at] = rows_of(self._listings[at])
            return self._listed[at]

    def histories(self, requests: Sequence[HistoryRequest]) -> list[History | MarketError]:
        """Return the results of `load_histories` in the order of ``requests``, or the error for a history that cannot be read."""
        with self._turn:
            new = [one for one in dict.fromkeys(requests) if one not in self._histories]
            try:
                self._histories |= zip(new, self._loaded(new), strict=True)
            except (MarketError, HistoryError, MemoryError):
                for one in new:
                    self._histories[one] = self._loaded_or_why(one)
            return [self._histories[one] for one in requests]

    def _loaded(self, requests: Sequence[HistoryRequest]) -> list[History]:
        return load_histories(self._store, requests, reader=self._reader)

    def _loaded_or_why(self, request: HistoryRequest) -> History | MarketError:
        try:
            return self._loaded([request])[0]
        except MarketError as error:
            return error
        except (HistoryError, MemoryError) as error:
            return MarketError(f"market {request.market.key}: {why_raised(error)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnValues:
    """Values of one turn of the loop: its time, settings and name, and how it computes; no warehouse.

    ``at`` is the logical time, the start of a slot. With ``own_end`` every market is read at the
    end of its own record instead, if that is earlier. ``run_id`` names the turn; a second turn of
    the same name writes nothing new. Functions called through ``fan`` take values and return
    values. ``show`` is called with the decisions as soon as they are stored. ``made`` is `LIVE` if
    the turn runs in its own slot, else the turn is a backfill. ``clock`` is the present time, used
    only to report rows from the future and records that ended long ago; no result depends on it.
    """

    at: pd.Timestamp
    settings: Settings
    run_id: str
    own_end: bool = False
    fan: Fan = field(default=in_turn)
    say: Callable[[str], None] = field(default=lambda _: None)
    show: Callable[[Sequence[Mapping[str, Any]]], None] = field(default=lambda _: None)
    made: str = LIVE
    clock: pd.Timestamp | None = None

    @property
    def terms_at(self) -> pd.Timestamp | None:
        """Time as of which terms of jobs are read: the turn's time, or with ``own_end`` None, the present, as for jobs (M2.9)."""
        return None if self.own_end else self.at

    @property
    def fresh(self) -> Freshness:
        """The test whether an observation is stale."""
        return Freshness(clock=self.clock if self.own_end else None)

    def done(self, stage: str, details: Mapping[str, Any]) -> RunRow:
        """Return the ledger row that records a completed stage of the turn."""
        return RunRow(run=self.run_id, at=self.at, stage=stage, details=details, made=self.made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(TurnValues):
    """A turn on a warehouse: readers take it, stages take only `TurnValues` and facts.

    Only the process that owns ``store`` writes. ``reads`` is a cache of observations, which must be
    ingested by then (None: the turn creates its own).
    """

    store: Store
    reads: Reads | None = None

    def __post_init__(self) -> None:
        """Create a cache of observations if none is shared between turns."""
        if self.reads is None:
            object.__setattr__(self, "reads", Reads(self.store))

    @property
    def observations(self) -> Reads:
        """The cache of observations."""
        return cast(Reads, self.reads)  # set in `__post_init__`

    def listed(self, at: pd.Timestamp | None = None) -> list[dict[str, Any]]:
        """Return the markets known at a time (None: the time of the turn) as rows."""
        return self.observations.listed(self.at if at is None else at)

    def failure_kept(self, stage: str) -> failure_kept:
        """Return a context manager that records in the ledger of runs why a stage fails."""
        return failure_kept(self.store, self.run_id, at=self.at, stage=stage, say=self.say)


def run_id_of(at: pd.Timestamp, what: str = "run") -> str:
    """Return the name of the turn at a logical time: the same time gives the same name."""
    return f"{what}-{at:%Y%m%dT%H%M%SZ}"


# ---
# Which markets a turn follows, at which time each is read, and the histories of markets and peers,
# and forecasts.

#: Most peers read for a market.
MOST_PEERS = 12


def history_request(
    followed: Followed,
    settings: Settings,
    *,
    start: pd.Timestamp | None,
    on_demand_usd: float | None = None,
) -> HistoryRequest:
    """Return the request for a market's history as known at its time, on the slot grid and assumptions of the settings.

    The history includes the counts observed between slots, if any. ``on_demand_usd`` is assumed
    where no on-demand price was observed.
    """
    return HistoryRequest(
        market=followed.market,
        start=start,
        end=followed.at,
        step=step_of(settings),
        known_at=followed.at,
        source=followed.source,
        trust=settings.trust,
        assumptions=HistoryAssumptions(
            spot_share=settings.assumed_spot_share,
            always_available=settings.assumed_capacity or None,
            on_demand_usd=on_demand_usd,
        ),
        within=True,
        on_demand=(*followed.on_demand, *settings.on_demand_terms),
    )


def read_history(
    store: Store,
    followed: Followed,
    *,
    settings: Settings,
    start: pd.Timestamp | None = None,
    on_demand_usd: float | None = None,
) -> History:
    """Return the history of a followed market for a `history_request`."""
    request = history_request(followed, settings, start=start, on_demand_usd=on_demand_usd)
    return load_histories(store, [request])[0]


def read_all(turn: Turn, asked: Sequence[tuple[Followed, pd.Timestamp]]) -> list[History]:
    """Return the history of each market from a start on, in order; raises the first `MarketError`."""
    found = []
    for history in try_histories(turn, asked):
        if isinstance(history, MarketError):
            raise history
        found.append(history)
    return found


def try_histories(turn: Turn, asked: Sequence[tuple[Followed, pd.Timestamp]]) -> list[History | MarketError]:
    """Return the history of each market from a start on, or the error that prevents it, in order.

    All are read with a few statements.
    """
    return turn.observations.histories(
        [history_request(one, turn.settings, start=start) for one, start in asked]
    )


def market_of(turn: Turn, text: str) -> Followed:
    """Return the followed market for a market name in a turn; raises as `find_market` does."""
    return find_market(
        turn.store, text, at=turn.at, settings=turn.settings, own_end=turn.own_end, listed=turn.listed()
    )


#: Most markets of a multi-market job, and most instances over all of them: tables grow quadratically.
MOST_PLACES, MOST_PLACED = 24, 2048


def places_of(
    turn: Turn, request: JobRequest, *, told: Callable[[str], None] = lambda _: None
) -> tuple[Followed, ...]:
    """Return the markets of a placed multi-market request at one time, its home first, at most `MOST_PLACES` (M11.1).

    With ``n_max`` above 85 there are fewer: markets times instances stay within `MOST_PLACED`.
    ``told`` is called with a message if markets are left out.

    Candidates are the markets whose counts were observed once a slot when the job began, in later
    turns too; if no matching market has counts, those with a price (`counted_or_priced`). So a
    market that a decision chose stays a candidate, and a backfilled turn has the same markets.
    Markets are sorted by on-demand price per unit of work, then by number of counts; of each market
    the most trusted source is used. Raises `MarketError` if no market matches, and `JobError` as
    `check_types` does.
    """
    settings, step = turn.settings, step_of(turn.settings)
    began = turn.at if turn.own_end else min(turn.at, first_slot(request, step))
    home = None
    if request.market is not None:
        home = market_of(turn, request.place).for_job(request)
    fitting_rows = [
        row for row in turn.listed(began) if fits(request, Market.parse(row["market"]), str(row["source"]))
    ]
    rows = counted_or_priced(fitting_rows, turn, step, began)
    rows.sort(key=lambda row: (trust_rank(row["source"], settings), row["source"]))
    best: dict[str, dict[str, Any]] = {}
    for row in rows:
        best.setdefault(str(row["market"]), row)
    ranked = sorted(best.values(), key=lambda row: _cheapest(row, request))
    found = [
        Followed(
            market=Market.parse(row["market"]),
            source=str(row["source"]),
            at=own_time(pd.Timestamp(row["last_observed"]), turn.at, step, own_end=turn.own_end),
            on_demand=on_demand_terms(request),
        )
        for row in ranked
        if home is None or row["market"] != home.market.key
    ]
    found = ([] if home is None else [home]) + found
    if not found:
        raise MarketError(
            f"job {request.name!r}: no market fits {' '.join([', '.join(request.markets), *request.filters])} at {began}"
            + "".join(f"; {text}" for text in types_without_room(request)),
            expected="a market with counts at least once a slot, or prices of the last seven days"
            + ("" if request.gpus_max is None else ", and whole instances within gpus_min and gpus_max"),
            remedy="`slackwater markets` lists them",
        )
    at = found[0].at if home is not None else _common_time(request, found)
    fitting = [one for one in found if one.at == at]
    held = gpu_type_of(found[0].market)
    widest = request.n_max or (request.gpus_max or 1) // (1 if held is None else held.gpus) or 1
    most = max(1, min(MOST_PLACES, MOST_PLACED // widest))
    if len(fitting) > most:
        told(
            f"job {request.name}: of {len(fitting)} markets that fit, it is decided among "
            f"{'its home and ' if home is not None else ''}{plural(most - (home is not None), 'market')} that "
            f"{'is' if most - (home is not None) == 1 else 'are'} cheapest on demand; name fewer in its file to choose others"
        )
    places = tuple(fitting[:most])
    check_types(request, [one.market for one in places])
    return places


def markets_of(turn: Turn, request: JobRequest) -> tuple[Followed, ...]:
    """Return the markets of a placed request: its only market, or those of a multi-market job, its home first.

    Raises as `find_market` and `places_of` do.
    """
    return (
        places_of(turn, request) if request.may_move else (market_of(turn, request.place).for_job(request),)
    )


def placed_in(
    turn: Turn, request: JobRequest, *, market: str | None = None
) -> tuple[JobRequest, tuple[Followed, ...]]:
    """Return a request placed at the time of its markets, and these markets.

    ``market`` is the only market of a single-market job, or the home of a multi-market job, if
    given. Raises `MarketError` for a single-market job without a market, and as `find_market` and
    `places_of` do.
    """
    if not request.may_move:
        if market is None and request.market is None:
            raise MarketError(f"job {request.name!r} names no market", remedy="give --market MARKET")
        only = market_of(turn, market or request.place).for_job(request)
        return request.placed(at=only.at, market=only.market.key, source=only.source), (only,)
    text = market or (None if request.market is None else request.place)
    if text is not None:
        home = market_of(turn, text)
        request = request.model_copy(update={"market": home.market.key, "source": home.source})
    at = turn.at.floor(step_of(turn.settings))
    placed = request.placed(at=at, market=request.market, source=request.source)
    found = places_of(turn, placed)
    return request.placed(at=found[0].at, market=request.market, source=request.source), found


def as_filed(request: JobRequest, stored: StoredJob) -> JobRequest:
    """Return the request of a job file, with start, market and source of the stored job where the file omits them.

    ``deadline_in`` counts from the start of the stored job, as when the job was added.
    """
    own = stored.request
    if request.names_no_market:  # its markets were chosen when it was added
        request = request.model_copy(update={"markets": own.markets})
    market, source = own.market, request.source
    if request.market is not None:
        there, named = parse_market(request.market)
        market, source = there.key, named or source
    return request.placed(
        at=own.starts, market=market, source=source or (own.source if market == own.market else None)
    )


#: Most alternative instance types named in a proposal.
MOST_OTHERS = 4


def proposed(turn: Turn, request: JobRequest) -> tuple[JobRequest, str]:
    """Return a request without markets with all followed markets of one instance type, and why as a sentence (ours).

    The throughput of a request holds for one instance type. Candidates are the types with the GPUs
    of the request's configuration or ``gpu_type``, else all types. The type with the cheapest
    market over its last day is chosen, ranked by `Lately.screened_usd` as for a request; types with
    known GPUs come first. Raises `JobError` if no followed market matches.
    """
    step, filled = step_of(turn.settings), request.configuration
    found: dict[str, list[Followed]] = {}
    usable = counted_or_priced(turn.listed(), turn, step, turn.at)
    for row in usable:
        market = Market.parse(row["market"])
        held = gpu_type_of(market)
        own = None if held is None else (held.gpu_model, held.gpus)
        fits_filled = filled is None or own == (filled.gpu_model, filled.gpus_per_instance)
        fits_units = may_run_in(request, market) and can_run_on(request, market)
        if fits_filled and fits_units:
            at = own_time(pd.Timestamp(row["last_observed"]), turn.at, step, own_end=turn.own_end)
            followed = Followed(market=market, source=str(row["source"]), at=at)
            found.setdefault(market.instance_type, []).append(followed)
    if not found:
        raise JobError(
            f"job {request.name!r} names no market, and none is followed that fits it",
            expected="market, the one it runs in (its home, if it may move), or markets, those it may move among",
            remedy='add markets = ["gcp/*/*/a3-highgpu-1g"], or gpu_type = "H100", or give --market MARKET',
        )
    (chosen, why), *others = _types_by_price(turn, found, request) if len(found) > 1 else [(*found, "")]
    names = _patterns(found[chosen])
    told = (
        f"of {plural(len(found), 'instance type')} the cheapest{why}"
        if others
        else "the only instance type that fits"
    )
    wanted = request.gpu_type or (filled.gpu_model if filled else None)
    if wanted is not None:
        told += f" with {wanted}"
    if others:
        more = [f"{name}{its}" for name, its in others[:MOST_OTHERS]]
        more += [f"{len(others) - MOST_OTHERS} more"] if len(others) > MOST_OTHERS else []
        told += (
            f", and its throughput is taken to be theirs; else {listed(more)}: "
            f"name it in the file, as markets = {json.dumps(_patterns(found[others[0][0]]))}, or give --market MARKET"
        )
    return request.model_copy(update={"markets": tuple(names)}), (
        f"job {request.name} names no market: it may move among the "
        f"{plural(len({one.market.key for one in found[chosen]}), 'market')} of {chosen}, {told}; "
        f"markets = {json.dumps(names)}"
    )


def _patterns(found: Iterable[Followed]) -> list[str]:
    """Return the markets of one instance type as patterns for a job file."""
    return sorted({f"{one.market.provider}/*/*/{one.market.instance_type}" for one in found})


def _types_by_price(
    turn: Turn, found: Mapping[str, Sequence[Followed]], request: JobRequest
) -> list[tuple[str, str]]:
    """Return instance types, each with its price as text: types with known GPUs first, then by cost of the work.

    The cost is that of the work on the largest number of instances of the request, in the cheapest
    market of the type. The text has the price of an instance-hour and a GPU-hour there.
    """
    asked = [(one, one.at - LATELY) for own in found.values() for one in own]
    histories = dict(zip((one for one, _ in asked), try_histories(turn, asked), strict=True))
    ranked = []
    for name, own in found.items():
        read = [shown_lately(history) for one in own if isinstance(history := histories[one], History)]
        _, instances, throughput = run_on(request, own[0].market)
        priced = [(usd, one.key) for one in read if not np.isnan(usd := one.screened_usd(instances))]
        usd, key = min(priced, default=(np.inf, ""))
        each, gpus = usd / instances, gpus_per_instance(request, own[0].market)
        a_gpu = f", {price(each / gpus)} a GPU-hour," if gpus and gpus > 1 else ""
        words = f" ({price(each)} USD an instance-hour{a_gpu} by its last day in {key})" if key else ""
        work_usd = each * work_amount(request, own[0].market, 1.0) / throughput.rate(1)
        ranked.append((all(gpu_type_of(one.market) is None for one in own), work_usd, name, words))
    return [(name, words) for _, _, name, words in sorted(ranked)]


def _cheapest(row: Mapping[str, Any], request: JobRequest) -> tuple[float, float, str]:
    """Return a sort key: on-demand price per unit of work, most counts first, name."""
    price = float(row["on_demand_usd"])
    with suppress(JobError):  # `check_types` raises this error for the markets that are used
        price /= run_on(request, Market.parse(str(row["market"])))[2].rate(1)
    return np.inf if np.isnan(price) else price, -float(row["count_rows"]), str(row["market"])


def _common_time(request: JobRequest, found: Sequence[Followed]) -> pd.Timestamp:
    """Return the time that most markets have in common, preferably within the job; the latest if tied."""
    votes = Counter(one.at for one in found)
    return max(votes, key=lambda at: (request.starts <= at < request.ends, votes[at], at))


def peers_of(turn: Turn, asked: Sequence[Followed], *, start: pd.Timestamp) -> dict[Followed, list[History]]:
    """Return for each market the histories from ``start`` of its peers: markets of the same source and instance type.

    At most `MOST_PEERS`, those of the same region first, then by name. The histories are as known
    at the turn's time, also where a market is read at an earlier time: `market_record` drops rows
    learned later. Histories that cannot be read are left out.
    """
    step, listed = step_of(turn.settings), turn.listed()
    peers: dict[Followed, list[Followed]] = {}
    for followed in dict.fromkeys(asked):
        market = followed.market
        kind = (followed.source, market.instance_type)
        others = [
            row
            for row in listed
            if (row["source"], row["instance_type"]) == kind
            and row["has_counts"]
            and row["market"] != market.key
        ]
        ranked = sorted(others, key=lambda row: (row["region"] != market.region, row["market"]))
        peers[followed] = [_peer(turn, row, step) for row in ranked[:MOST_PEERS]]
    needed = list(dict.fromkeys(one for own in peers.values() for one in own))
    found = dict(zip(needed, try_histories(turn, [(one, start) for one in needed]), strict=True))
    return {
        followed: [history for one in own if isinstance(history := found[one], History)]
        for followed, own in peers.items()
    }


def _peer(turn: Turn, row: Mapping[str, Any], step: pd.Timedelta) -> Followed:
    last = pd.Timestamp(str(row["last_observed"])).ceil(step)
    return Followed(
        market=Market.parse(str(row["market"])),
        source=str(row["source"]),
        at=min(last, turn.at.floor(step)),
    )


#: Forecasts of the planner by market key and source, ascending.
PlannedForecasts = Mapping[tuple[str, str], Sequence[Forecast]]


def planned_forecasts(
    turn: Turn, jobs: Sequence[tuple[StoredJob, Followed]], issued: PlannedForecasts | None = None
) -> dict[tuple[str, str], list[Forecast]]:
    """Return by job and market (`Followed.key`) the forecasts of the planner (M6.1).

    They are those issued in the job's slots, up to the market's time. ``issued`` are forecasts in
    memory, as the forecast stage of the same jobs returns them; None: all are read.
    """
    known = read_planned(turn, jobs) if issued is None else issued
    return {
        (job.request.name, followed.key): [
            one
            for one in known.get((followed.market.key, followed.source), ())
            if one.step == job.step and job.start <= one.issued_at <= min(job.deadline, followed.at)
        ]
        for job, followed in jobs
    }


def joined_forecasts(planned: Iterable[PlannedForecasts]) -> PlannedForecasts:
    """Return the forecasts of consecutive turns together, ascending, each once."""
    found: dict[tuple[str, str], dict[tuple[pd.Timestamp, pd.Timedelta], Forecast]] = {}
    before: PlannedForecasts | None = None
    for own in planned:
        if own is before:  # turns whose forecasts were computed together share them
            continue
        before = own
        for place, forecasts in own.items():
            found.setdefault(place, {}).update(((one.issued_at, one.step), one) for one in forecasts)
    return {place: [own[key] for key in sorted(own)] for place, own in found.items()}


def read_planned(
    turn: Turn, jobs: Iterable[tuple[StoredJob, Followed]]
) -> dict[tuple[str, str], list[Forecast]]:
    """Return the stored forecasts of the planner in the slots of some jobs on their markets."""
    by_step: dict[pd.Timedelta, list[tuple[StoredJob, Followed]]] = {}
    for job, followed in jobs:
        by_step.setdefault(job.step, []).append((job, followed))
    found: dict[tuple[str, str], list[Forecast]] = {}
    for step, own in by_step.items():
        vintages = read_vintages(
            turn.store,
            Forecast,
            markets=dict.fromkeys((followed.market, followed.source) for _, followed in own),
            models=[turn.settings.planner],
            start=min(job.start for job, _ in own),
            end=max(min(job.deadline, followed.at) for job, followed in own),
            step=step,
        )
        for (key, source, _), forecasts in vintages.items():
            found.setdefault((key, source), []).extend(forecasts)
    return found


# ---
# Work of a turn: the followed markets, the jobs on them, and the policy pool with its past results.

#: Most example jobs added to a warehouse without jobs.
OPEN_EXAMPLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a turn: the followed markets, and the jobs that run or have ended unscored, each with its market.

    ``left_out`` are messages on jobs and markets that could not be read at this time, and on the
    markets proposed for a job without markets; other jobs are not affected. ``places`` has by job
    name the markets of each multi-market job; in ``running`` and ``ended`` such a job has the first
    of them.
    """

    markets: tuple[Followed, ...]
    running: tuple[tuple[StoredJob, Followed], ...]
    ended: tuple[tuple[StoredJob, Followed], ...]
    left_out: tuple[str, ...] = ()
    places: Mapping[str, tuple[Followed, ...]] = field(default_factory=dict)

    def placed(self) -> list[tuple[StoredJob, Followed]]:
        """Return each job with each of its markets."""
        return [
            (job, one)
            for job, market in (*self.running, *self.ended)
            for one in self.places.get(job.request.name, (market,))
        ]

    def jobs_on(self, followed: Followed) -> list[StoredJob]:
        """Return the jobs that run or may run on one market."""
        return [job for job, market in self.placed() if market == followed]


def find_work(turn: Turn, requests: Sequence[JobRequest], *, scored: Collection[str]) -> Work:
    """Store the requests of this turn, add examples to a warehouse without user jobs, and sort the jobs.

    Start and deadline that a request leaves open count from the time of its market (`_placed`). The
    markets of jobs come first, then the most informative others, up to ``max_markets`` in all; a
    request without a market gets the `proposed` markets. ``scored`` names the jobs on which no
    policy is left to be replayed (`Rounds.settled`).
    """
    left_out: list[str] = []
    asked = []
    for request in requests:
        if request.names_no_market:
            request, told = proposed(turn, request)
            left_out.append(told)
        asked.append(_placed(turn, request))
    known = _add_jobs(turn, asked, origin="user")
    chosen = choose_markets(turn, most=turn.settings.max_markets)
    readable = _readable(turn, [followed for followed, _, _ in chosen], left_out)
    chosen = [one for one in chosen if one[0] in readable]
    seen = _visible(turn, known)
    if not _has_users(turn, seen) and not any(job.deadline > turn.at for job in seen):
        capacities = [(followed, capacity) for followed, capacity, _ in chosen]
        examples = open_examples(example_requests(), capacities, most=OPEN_EXAMPLES)
        known = _add_jobs(turn, examples, origin="example")
    return sorted_jobs(turn, known, [followed for followed, _, _ in chosen], left_out, scored)


def _add_jobs(turn: Turn, requests: Sequence[JobRequest], *, origin: str) -> list[StoredJob]:
    """Store new jobs, and return every job with its terms at the turn's time."""
    save_jobs(turn.store, requests, origin=origin, at=turn.at, step=step_of(turn.settings))
    return stored_jobs(turn.store, known_at=turn.terms_at)


def _placed(turn: Turn, request: JobRequest) -> JobRequest:
    """Return a request with its relative times counted from the time at which its market is read.

    That is the end of the market's record or the turn's time. If the market cannot be found, the
    turn's time is used and `sorted_jobs` reports the error.
    """
    at = turn.at
    if turn.own_end:
        with suppress(InputError):
            at = placed_in(turn, request)[1][0].at
    return request.placed(at=at, market=request.market, source=request.source)


def _visible(turn: Turn, jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """Return the jobs added by the turn's time; all jobs if each market is read at the end of its record."""
    return [job for job in jobs if turn.own_end or job.created_at <= turn.at]


def _has_users(turn: Turn, jobs: Sequence[StoredJob]) -> bool:
    """Return whether there is a user job.

    Without ``own_end`` a job added after its deadline does not count: it only serves learning.
    """
    return any(job.origin == "user" and (turn.own_end or job.deadline > job.created_at) for job in jobs)


def panel_mates(turn: Turn, asked: Collection[Followed]) -> list[Followed]:
    """Return the other followed markets of the same sources, which panel forecasters are estimated on too."""
    wanted = {followed.key for followed in asked}  # the turn may follow the same market at another time
    sources = {followed.source for followed in asked}
    chosen = [followed for followed, _, _ in choose_markets(turn, most=turn.settings.max_markets)]
    mates = [one for one in chosen if one.source in sources and one.key not in wanted]
    readable = _readable(turn, mates, [])
    return [one for one in mates if one in readable]


def _readable(turn: Turn, asked: Sequence[Followed], left_out: list[str]) -> set[Followed]:
    """Return the markets that have a history at their time; the errors of the others are appended to ``left_out``."""
    found: set[Followed] = set()
    for followed, history in zip(asked, try_histories(turn, [(one, one.at) for one in asked]), strict=True):
        if isinstance(history, MarketError):
            text = f"market {followed.key} is left out: {history}"
            left_out += [] if text in left_out else [text]
        else:
            found.add(followed)
    return found


def sorted_jobs(
    turn: Turn,
    jobs: Sequence[StoredJob],
    chosen: Sequence[Followed],
    left_out: list[str],
    scored: Collection[str],
) -> Work:
    """Return the jobs that run at their market's time and those that ended by then unscored; nothing is stored.

    ``chosen`` are further markets to follow. Messages on jobs and markets that cannot be read are
    appended to ``left_out``, which also goes into the result. Example jobs are no longer planned
    once there is a user job; after their end they are replayed as others are.
    """
    seen = _visible(turn, jobs)
    users = _has_users(turn, seen)
    running: list[tuple[StoredJob, Followed]] = []
    ended: list[tuple[StoredJob, Followed]] = []
    places: dict[str, tuple[Followed, ...]] = {}
    left_out += unreadable_jobs(turn.store, known_at=turn.terms_at)
    for job in seen:
        if job.request.name in scored and job.deadline <= turn.at:
            continue  # a year has thousands of such jobs, and nothing is left to do for them
        if users and job.origin == "example" and job.deadline > turn.at:
            continue
        try:
            check_bounds(job.request)
        except JobError as error:  # accepted by an older version
            left_out.append(f"job {job.request.name} is left out: {error}")
            continue
        if job.request.may_move:
            found = _places_now(turn, job, left_out) if job.start <= turn.at else ()
            if found and job.start <= found[0].at:
                (ended if job.deadline <= found[0].at else running).append((job, found[0]))
                places[job.request.name] = found
            elif found:
                left_out.append(_begins_after(job, found[0]))
            continue
        try:
            followed = market_of(turn, job.request.place).for_job(job.request)
        except MarketError as error:
            left_out.append(f"job {job.request.name} is left out: {error}")
            continue
        if (followed.on_demand or followed not in chosen) and not _readable(turn, [followed], left_out):
            left_out.append(f"job {job.request.name} is left out, as its market cannot be read")
            continue
        if job.deadline <= followed.at:
            ended.append((job, followed))
        elif job.start <= followed.at:
            running.append((job, followed))
        elif job.start <= turn.at:
            left_out.append(_begins_after(job, followed))
    ended.sort(key=lambda item: (item[0].deadline, item[0].request.name))
    of_jobs = [
        one for job, followed in (*running, *ended) for one in places.get(job.request.name, (followed,))
    ]
    markets = list(dict.fromkeys([*of_jobs, *chosen]))
    most = max(turn.settings.max_markets, len(set(of_jobs)))
    return Work(
        markets=tuple(markets[:most]),
        running=tuple(running),
        ended=tuple(ended),
        left_out=tuple(left_out),
        places=places,
    )


def _begins_after(job: StoredJob, followed: Followed) -> str:
    """Return the message for a job that begins by the turn's time, but after the end of its market's record."""
    return (
        f"job {job.request.name} is left out: it begins at {job.start}, the record of {followed.key} ends at {followed.at}; "
        "give it an earlier start, or newer data"
    )


def _places_now(turn: Turn, job: StoredJob, left_out: list[str]) -> tuple[Followed, ...]:
    """Return the readable markets of a multi-market job; none if its home cannot be read."""
    try:
        found = places_of(turn, job.request, told=left_out.append)
    except InputError as error:
        left_out.append(f"job {job.request.name} is left out: {error}")
        return ()
    readable = _readable(turn, found, left_out)
    if job.request.market is not None and found[0] not in readable:
        return ()
    return tuple(one for one in found if one in readable)


#: Single-market or multi-market policy.
P = TypeVar("P")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Generic[P]):
    """Policies to choose from, in order, with the rounds learned so far and the learner.

    ``first`` decides before the first round unless the learner is ``informed`` by measurements from
    elsewhere (M5.6).
    """

    policies: tuple[P, ...]
    rounds: Rounds
    learner: Learner[Any]
    first: P
    informed: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the policies."""
        return self.rounds.names

    def lacking(self, job: str) -> list[P]:
        """Return the policies that were not replayed on a job."""
        lacking = self.rounds.lacking(job)
        return [one for name, one in zip(self.names, self.policies, strict=True) if name in lacking]

    def weights_after(self) -> list[np.ndarray]:
        """Return the weights after each round, each of shape (policies,)."""
        return [weights.probability for weights in self.rounds.weights(self.learner)[1:]]

    def deciding(self, times: Sequence[pd.Timestamp]) -> list[tuple[P, str]]:
        """Return the policy that decides at each time, and why: the leader by the rounds learned before (decision 3)."""
        known = [self.rounds.before(microseconds(at, "at")) for at in times]
        # Times whose rounds are the first rounds of this group share one pass over them.
        prefixes = [len(own.jobs) for own in known if own.jobs and own.begins(self.rounds)]
        first = min(prefixes, default=0)
        table = self.rounds.full(self.learner) if prefixes else self.rounds.utilities
        shared = weigh(self.learner, self.names, table, after=first) if prefixes else []
        found: list[tuple[P, str]] = []
        for own in known:
            seen = len(own.jobs)
            if not seen:
                found.append(self._untaught())
            elif own.begins(self.rounds):
                found.append(self._leading(shared[seen - first], seen))
            else:
                found.append(self._leading(own.newest(self.learner), seen))
        return found

    def _untaught(self) -> tuple[P, str]:
        if not self.informed:
            return self.first, "no job has ended yet"
        return self._leading(self.learner.weights(self.learner.start(self.names)), 0)

    def _leading(self, weights: Weights, jobs: int) -> tuple[P, str]:
        name, why = leading(weights, jobs)
        return self.policies[self.names.index(name)], why


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciders:
    """Policies that decide at a time, each with the reason: of single-market jobs, and of multi-market jobs.

    The second reason is "" before the first round of the multi-market policies (M11.9).
    """

    in_one_market: tuple[Policy[Any], str]
    among_markets: tuple[MultiMarketPolicy[Any], str]

    def of(self, request: JobRequest) -> tuple[Policy[Any] | MultiMarketPolicy[Any], str]:
        """Return the policy that decides a job, and why."""
        return self.among_markets if request.may_move else self.in_one_market


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool(Group[Policy[Any]]):
    """Single-market policies of the settings, and multi-market policies as a separate group (M11.9)."""

    movers: Group[MultiMarketPolicy[Any]]

    def learned(self, rounds: Rounds, of_movers: Rounds) -> Pool:
        """Return the pool with other rounds."""
        return replace(self, rounds=rounds, movers=replace(self.movers, rounds=of_movers))

    def group(self, request: JobRequest) -> Group[Any]:
        """Return the policies that are replayed on a job and decide it."""
        return self.movers if request.may_move else self

    def deciders(self, times: Sequence[pd.Timestamp]) -> list[Deciders]:
        """Return for each time the policies that decide, and why."""
        known = [bool(self.movers.rounds.before(microseconds(at, "at")).jobs) for at in times]
        return [
            Deciders(in_one_market=own, among_markets=(policy, why if knows else ""))
            for own, (policy, why), knows in zip(
                self.deciding(times), self.movers.deciding(times), known, strict=True
            )
        ]

    def settled(self) -> set[str]:
        """Return the jobs on which no policy is left to be replayed (`Rounds.settled`)."""
        return self.rounds.settled() | self.movers.rounds.settled()


def read_pool(turn: Turn) -> Pool:
    """Return the policy pool of the settings and the multi-market policies, with the rounds stored in the warehouse."""
    settings = turn.settings
    policies, learner = load_pool(settings.pool or DEFAULT_POOL), informed_learner(settings)
    names, movers = [policy.name for policy in policies], [mover.name for mover in MULTI_MARKET_POLICIES]
    rounds, of_movers = (stored_rounds(turn.store, own) for own in (names, movers))
    return Pool(
        policies=tuple(policies),
        rounds=rounds,
        learner=learner,
        first=policy_named(settings.first_policy),
        informed=_is_informed(settings, names),
        movers=Group(
            policies=MULTI_MARKET_POLICIES,
            rounds=of_movers,
            learner=learner,
            first=MULTI_MARKET_POLICIES[0],
            informed=_is_informed(settings, movers),
        ),
    )


def policies_named(turn: Turn, request: JobRequest, names: Sequence[str]) -> list[Any]:
    """Return the policies of some names that may decide a job; ``all`` stands for those that are replayed on it.

    Raises `PolicyError` or `SettingsError` for an unknown name.
    """
    if not request.may_move:
        if "all" in names:
            return list(read_pool(turn).policies)
        return [policy_named(name) for name in names]
    at_home = [] if request.market is None else [InOneMarket(policy=Stochastic(), market=0)]
    known = {policy.name: policy for policy in (*MULTI_MARKET_POLICIES, *at_home)}
    for name in names:
        if name not in ("all", *known):
            raise PolicyError(
                f"policy {name!r} of a job that may run in several markets",
                expected=f"all, or one of {', '.join(map(repr, known))}",
            )
    return [known[name] for name in (known if "all" in names else dict.fromkeys(names))]


def informed_learner(settings: Settings) -> Learner[Any]:
    """Return the learner of the settings, initialised with earlier measurements (M5.6)."""
    return _informed(settings.learner, settings.prior or DEFAULT_PRIOR, settings.prior_jobs)


@lru_cache(maxsize=8)
def _informed(learner: str, prior: Path, jobs: int) -> Learner[Any]:
    """Return the informed learner, cached because a learner caches its initial state."""
    return informed(learner_named(learner), _worlds(prior), jobs=jobs)


@lru_cache(maxsize=8)
def _worlds(prior: Path) -> tuple[MeasuredWorld, ...]:
    """Return the measured worlds, cached because a process may run many turns."""
    return read_prior(prior)


def _is_informed(settings: Settings, names: Sequence[str]) -> bool:
    worlds = _worlds(settings.prior or DEFAULT_PRIOR)
    return len(prior_rounds(names, worlds, jobs=settings.prior_jobs)) > 0


def deciding_policy(turn: Turn) -> tuple[Policy[Any], str]:
    """Return the policy that decides at the turn's time, and why."""
    return read_pool(turn).deciding([turn.at])[0]


def require_markets(work: Work) -> None:
    """Raise `MarketError` if a turn has no market to follow."""
    if not work.markets:
        raise MarketError(
            "no market has enough history at this time",
            expected="at least one market with a day of counts on the slot grid",
            remedy="`slackwater markets` shows what is there; choose another --at",
        )


#: Names of the example job files; other examples are TOML files too.
EXAMPLES = ("bert-sweep", "llama-8b-lora", "qwen-14b-sft")


def example_requests() -> list[JobRequest]:
    """Return the requests of the example job files, in the order of `EXAMPLES`."""
    folder = Path(__file__).parents[2] / "examples"
    files = [folder / f"{name}.toml" for name in EXAMPLES]
    if not all(file.is_file() for file in files):
        raise JobError(f"no example job in {folder}", remedy="give a job with --job FILE")
    return [read_request(file) for file in files]


def fitting(requests: Sequence[JobRequest], capacity: int) -> list[JobRequest]:
    """Return the requests that suit a capacity: single-instance requests for markets with one instance, else larger requests."""
    single = [request for request in requests if (request.gpus_max or request.n_max) == 1]
    wide = [request for request in requests if request not in single]
    return (single or wide) if capacity <= 1 else (wide or single)


def open_examples(
    requests: Sequence[JobRequest], markets: Sequence[tuple[Followed, int]], *, most: int
) -> list[JobRequest]:
    """Return example jobs that start now, one per market, on markets (with capacity) as different as possible.

    The markets are picked in turn from each (provider, instance type, source), so that few jobs
    show many kinds of market.
    """
    groups: dict[tuple[str, str, str], list[tuple[Followed, int]]] = {}
    for followed, capacity in markets:
        kind = (followed.market.provider, followed.market.instance_type, followed.source)
        groups.setdefault(kind, []).append((followed, capacity))
    kinds = sorted(
        groups.values(), key=lambda group: group[0][1] <= 1
    )  # stable sort: single-instance markets come last
    rounds = max((len(group) for group in kinds), default=0)
    order = [group[i] for i in range(rounds) for group in kinds if i < len(group)]
    jobs = []
    for i, (followed, capacity) in enumerate(order[:most]):
        able = [request for request in requests if can_run_on(request, followed.market)]
        choice = fitting(able, capacity)
        request = choice[i % len(choice)]
        name = f"example-{request.name}-{followed.at:%Y%m%d-%H%M}-{i + 1}"
        jobs.append(
            _named(request, name).placed(at=followed.at, market=followed.market.key, source=followed.source)
        )
    return jobs


def _named(request: JobRequest, name: str) -> JobRequest:
    return request.model_copy(update={"name": name})
