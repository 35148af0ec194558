"""What ``forecast``, ``plan`` and ``replay`` answer, as plain values; none of them starts the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.ledger.fields import decision_row
from flows.ledger.jobs import (
    OpenJob,
    OpenMovable,
    Report,
    StoredJob,
    every_report,
    find_job,
    open_job,
    open_movable,
    stored_jobs,
)
from flows.ledger.records import allocations_of, decisions_by_job, decisions_of, places_held
from flows.show.formats import rows_of
from flows.turn.context import (
    Followed,
    Turn,
    choose_markets,
    deciding_policy,
    market_of,
    peers_of,
    placed_among,
    proposed,
    read_all,
    read_pool,
    sorted_jobs,
    step_of,
    why_not_followed,
)
from flows.turn.forecast import forecasts_of, ready
from flows.turn.stages import Decided, decide_together, effort_of, moved_row
from forecasting.quantiles import Forecast
from optimization.job.definition import check_job
from optimization.job.request import JobRequest, first_slot, job_on, names_file, read_request
from optimization.moving.live import decide_moving, ranked_markets
from optimization.moving.movers import Alone
from optimization.moving.replay import MovedOutcome
from optimization.moving.score import MOVERS, EndedMovable, mover_named, score_movable
from optimization.moving.terms import movable_job
from optimization.policies.pool import policy_named
from optimization.policies.stochastic import Stochastic
from optimization.replay.decision import decide, record_start
from optimization.replay.score import (
    EndedJob,
    Scored,
    ended_job,
    perfect_forecasts,
    score_job,
)
from warehouse.errors import JobError, MarketError, PolicyError
from warehouse.issued import write_forecasts

if TYPE_CHECKING:
    from flows.schemas.forms import (
        ForecastRow,
        Held,
        MovedSlot,
        MovedSlots,
        ReplayedPolicy,
        ReplayedSlots,
        SlotQuantiles,
    )
    from optimization.market.window import MarketWindow
    from optimization.window.plan import Allocation
    from warehouse.history import Market

#: The forecaster that is never wrong: a bound, not a policy.
PERFECT = "perfect"


def issue_forecasts(
    turn: Turn, market: str | None, models: Sequence[str], *, horizon: int | None
) -> list[tuple[Followed, Forecast]]:
    """Forecasts of one market, or of all that are followed, by ``models``; they are kept."""
    markets = _asked_markets(turn, market)
    histories, prepared = ready(turn, {followed: [followed.at] for followed in markets}, models)
    made = [
        (followed, forecast)
        for followed in markets
        for forecast in forecasts_of(
            histories[followed], prepared.batches[followed], settings=turn.settings, horizon=horizon
        )
    ]
    with turn.store.transaction():
        prepared.save(turn.store)
        for followed, forecast in made:
            write_forecasts(turn.store, [forecast], source=followed.source)
    return made


#: Markets that are not followed of which an error says why.
MOST_UNFOLLOWED = 3


def _asked_markets(turn: Turn, market: str | None) -> list[Followed]:
    if market is not None:
        return [market_of(turn, market)]
    chosen = [followed for followed, _, _ in choose_markets(turn, most=turn.settings.max_markets)]
    if not chosen:
        raise MarketError(
            f"no market is followed: {_unfollowed(turn)}",
            expected="counts of instances at least once a slot for three days",
            remedy="name a market with --market; `slackwater markets` lists them",
        )
    return chosen


def _unfollowed(turn: Turn) -> str:
    """The first markets that are not followed, and why."""
    reasons = why_not_followed(turn, most=turn.settings.max_markets)
    words = [f"{market}: {reason}" for market, reason in list(reasons.items())[:MOST_UNFOLLOWED]]
    more = len(reasons) - len(words)
    return "; ".join(words) + (f"; and {more:,} more" if more > 0 else "")


def forecast_row(followed: Followed, forecast: Forecast) -> ForecastRow:
    """A forecast as plain values."""
    frame = forecast.frame.drop(columns=["fallback"])
    numbers = frame.select_dtypes("float").columns
    frame[numbers] = frame[numbers].round(6)
    own = frame["variable"]
    slots = frame.drop(columns=["variable"])
    return {
        "market": followed.market.key,
        "source": followed.source,
        "model": forecast.predictor,
        "issued_at": forecast.issued_at,
        "newest_row": forecast.newest_row,
        "step_minutes": forecast.step / pd.Timedelta(minutes=1),
        "fallback": forecast.fallback,
        "count": cast("list[SlotQuantiles]", rows_of(slots[own == "count"])),
        "price": cast("list[SlotQuantiles]", rows_of(slots[own == "price"])),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedJob:
    """A job by file or by name, with the decisions made for it and the reports of it; how its markets were proposed, if so."""

    request: JobRequest
    decisions: Sequence[dict[str, Any]] = ()
    reports: Sequence[Report] = ()
    proposal: str = ""


def asked_job(turn: Turn, job: str, *, market: str | None = None) -> AskedJob:
    """The job that a command names; a file that names no market, where no ``market`` is given either, as `proposed`."""
    if names_file(job):
        request = read_request(Path(job))
        if request.names_no_market and market is None:
            request, told = proposed(turn, request)
            return AskedJob(request=request, proposal=told)
        return AskedJob(request=request)
    store = turn.store
    return AskedJob(
        request=find_job(store, job, known_at=turn.terms_at).request,
        decisions=decisions_of(store, job),
        reports=every_report(store, [job]),
    )


def planned_decision(turn: Turn, job: AskedJob, *, market: str | None, policy: str | None) -> dict[str, Any]:
    """The decision of one job's next slot, and why its policy was chosen; nothing is stored."""
    if job.request.may_move:
        movable = movable_as_of(turn, job, market=market, mover=policy)
        return moved_row(movable, decide_moving(movable.live, effort_of(turn.settings)))
    running = job_as_of(turn, job, market=market)
    by, why = (policy_named(policy), "asked for") if policy else deciding_policy(turn)
    return decision_row(running, decide(running.live, by, effort_of(turn.settings))) | {"chosen_because": why}


def decisions_as_of(turn: Turn, requests: Sequence[JobRequest] = ()) -> Decided:
    """The decisions that a turn at this time would issue for the open jobs together (M3.7), and for placed ``requests``.

    Those that it has issued stay as they are. Nothing is stored.
    """
    settings, left_out = turn.settings, list[str]()
    jobs = stored_jobs(turn.store, known_at=turn.terms_at)
    known = [job for job in jobs if job.start <= turn.at < job.deadline]
    names = {job.request.name for job in known}
    known += [
        StoredJob(request=request, origin="user", step=step_of(settings), created_at=turn.at)
        for request in requests
        if request.name not in names
    ]
    work = sorted_jobs(turn, known, [], left_out, ())
    issued = decisions_by_job(turn.store, [job.request.name for job, _ in work.running])
    rows: list[dict[str, Any]] = []
    lacking: list[tuple[StoredJob, tuple[Followed, ...], bool]] = []
    for job, followed in work.running:
        name = job.request.name
        old = [row for row in issued[name] if pd.Timestamp(row["slot"]) == followed.at]
        rows += old
        if not old:
            lacking.append((job, work.places.get(name, (followed,)), name in work.places))
    opened, why = _opened_together(turn, lacking, issued) if lacking else ([], [])
    (fresh,) = decide_together(
        [(0, one) for one in opened], [deciding_policy(turn)], [rows], effort_of(settings), turn.fan
    )
    rows += [row for row in fresh.values() if not isinstance(row, str)]
    left_out += why + [text for text in fresh.values() if isinstance(text, str)]
    return Decided(rows=tuple(sorted(rows, key=lambda row: str(row["job"]))), left_out=tuple(left_out))


def _opened_together(
    turn: Turn,
    lacking: Sequence[tuple[StoredJob, tuple[Followed, ...], bool]],
    issued: Mapping[str, Sequence[dict[str, Any]]],
) -> tuple[list[OpenJob | OpenMovable], list[str]]:
    """Jobs as they stand on forecasts made now, those that may move marked so; and in words which of them cannot be opened."""
    settings, step = turn.settings, step_of(turn.settings)
    origins: dict[Followed, set[pd.Timestamp]] = {}
    for job, markets, moves in lacking:
        for one in markets:
            origins.setdefault(one, set()).update(
                [one.at] if moves else pd.date_range(job.start, one.at, freq=step)
            )
    histories, prepared = ready(
        turn, {one: sorted(slots) for one, slots in origins.items()}, [settings.planner]
    )
    forecasts = {
        one: forecasts_of(histories[one], prepared.batches[one], settings=settings) for one in origins
    }
    reports: dict[str, list[Report]] = {job.request.name: [] for job, _, _ in lacking}
    for report in every_report(turn.store, list(reports)):
        reports[report.job].append(report)
    opened: list[OpenJob | OpenMovable] = []
    left_out: list[str] = []
    for job, markets, moves in lacking:
        name, start = job.request.name, record_start(job.start)
        peers = peers_of(turn, markets, start=start)
        own = read_all(turn, [(one, start) for one in markets])
        if not moves:
            opened.append(
                open_job(
                    job.request,
                    own[0],
                    decided=allocations_of(issued[name]),
                    forecasts=forecasts[markets[0]],
                    peers=peers[markets[0]],
                    reports=reports[name],
                    fresh=turn.fresh,
                )
            )
            continue
        try:
            movable = open_movable(
                job.request,
                own,
                decided=places_held(issued[name]),
                forecasts=[forecasts[one] for one in markets],
                peers=[peers[one] for one in markets],
                reports=reports[name],
                fresh=turn.fresh,
            )
        except JobError as error:
            left_out.append(f"job {name} is not decided: {error}")
        else:
            opened.append(movable)
    return opened, left_out


def job_as_of(turn: Turn, job: AskedJob, *, market: str | None = None) -> OpenJob:
    """A job at the time of ``turn``: where it stands, what was decided and reported of it, its market and the forecast in force.

    ``market`` is where it runs if it does not say so. Raises `JobError` where the
    market is taken outside of the job's time.
    """
    settings = turn.settings
    request = job.request
    followed = market_of(turn, _market_text(request, market))
    if request.deadline is None or request.start is None:
        request = request.placed(at=followed.at, market=followed.market.key, source=followed.source)
    first = _running_since(request, followed.at, settings)
    slots = list(pd.date_range(first, followed.at, freq=step_of(settings)))
    turn = replace(turn, at=followed.at)
    histories, prepared = ready(turn, {followed: slots}, [settings.planner])
    history = histories[followed]
    return open_job(
        request,
        history,
        decided=allocations_of(job.decisions),
        forecasts=forecasts_of(history, prepared.batches[followed], settings=settings),
        peers=peers_of(turn, [followed], start=record_start(first))[followed],
        reports=job.reports,
        fresh=turn.fresh,
    )


def movable_as_of(
    turn: Turn, job: AskedJob, *, market: str | None = None, mover: str | None = None
) -> OpenMovable:
    """`job_as_of` for a job that may move; ``market`` is its home if given, ``mover`` decides (None: the one that leads).

    It raises as that, and as `places_of` and `mover_named` do.
    """
    settings = turn.settings
    request = job.request
    if not request.may_move:
        raise JobError(
            f"job {request.name!r} runs in one market",
            expected="a job that may move",
            remedy='say markets = ["provider/*/*/type"] in its file',
        )
    by = (mover_named(mover), "asked for") if mover else None
    request, places = placed_among(turn, request, market=market)
    at = places[0].at
    first = _running_since(request, at, settings)
    turn = replace(turn, at=at)
    histories, prepared = ready(turn, {one: [at] for one in places}, [settings.planner])
    start = record_start(first)
    peers = peers_of(turn, places, start=start)
    return open_movable(
        request,
        read_all(turn, [(one, start) for one in places]),
        decided=places_held(job.decisions),
        forecasts=[forecasts_of(histories[one], prepared.batches[one], settings=settings) for one in places],
        peers=[peers[one] for one in places],
        reports=job.reports,
        by=by or read_pool(turn).movers_deciding([at])[0],
        fresh=turn.fresh,
    )


def ranked_rows(movable: OpenMovable) -> list[dict[str, Any]]:
    """The markets of a job that may move as plain values, by what being there in the next slot is worth to it."""
    return [
        {
            "market": movable.places[one.market],
            "source": movable.histories[one.market].source,
            "on_demand": one.allocation.on_demand,
            "spot": one.allocation.spot,
            "dearer_usd": one.dearer_usd,
            "move_usd": one.move_usd,
            "price_usd": one.price_usd,
            "available": one.available,
            "on_demand_usd": one.on_demand_usd,
            "chance_of_spot": one.chance,
            "reason": one.reason,
        }
        for one in ranked_markets(movable.live)
    ]


def _running_since(request: JobRequest, at: pd.Timestamp, settings: Settings) -> pd.Timestamp:
    """The first slot of a placed request; raises `JobError` where it does not run at a time."""
    first = first_slot(request, step_of(settings))
    if not first <= at < request.ends:
        raise JobError(
            f"job {request.name!r} runs from {first} to {request.deadline}, the market is taken at {at}",
            expected="a time between the two",
            remedy="give --at TIME",
        )
    return first


def _market_text(request: JobRequest, market: str | None) -> str:
    if market is not None:
        return market
    if request.market is None:
        raise MarketError(f"job {request.name!r} names no market", remedy="give --market MARKET")
    return request.place


def replayed(
    turn: Turn, job: JobRequest, *, market: str, policy: str, start: pd.Timestamp | None, model: str | None
) -> list[ReplayedSlots]:
    """What one policy, or ``all`` of the pool, would have made of one job on a market's record, the best first.

    Raises `MarketError` if the job starts after the record.
    """
    settings, step = turn.settings, step_of(turn.settings)
    planner = model or settings.planner
    followed = market_of(turn, market)
    placed = _placed_in_record(job, followed, start, settings)
    first = first_slot(placed, step)
    if first > followed.at:
        raise MarketError(
            f"job {placed.name!r} starts at {first}, the record of {followed.key} ends at {followed.at}",
            expected="a start within the record",
            remedy="choose an earlier --from",
        )
    policies = list(read_pool(turn).policies) if policy == "all" else [policy_named(policy)]
    ended = _with_forecasts(turn, placed, followed, planner)
    if policy != "OD-only":
        check_job(ended.job, uses_spot=True)
    scored = score_job(ended, policies)
    rows: list[ReplayedSlots] = []
    for i in _best_first(scored):
        slots = [
            held_in(ended.window, t, ended.start + t * step, held)
            for t, held in enumerate(scored.outcomes[i].allocations)
        ]
        row = replayed_row(scored, i, followed.market, followed.source, planner)
        rows.append({**row, "allocations": slots})
    return rows


def _best_first(scored: Scored) -> list[int]:
    return sorted(range(len(scored.outcomes)), key=lambda i: -scored.outcomes[i].utility_usd)


def _placed_in_record(
    request: JobRequest, followed: Followed, start: pd.Timestamp | None, settings: Settings
) -> JobRequest:
    """The request placed at ``start``, else at its own start, else so that its last slot is the record's last."""
    step = step_of(settings)
    if start is None and request.start is None:
        trial = request.placed(at=followed.at, market=followed.market.key, source=followed.source)
        start = followed.at + step - (trial.ends - trial.starts)
        start = start.ceil(step)
    if start is not None:
        request = request.model_copy(update={"start": start.to_pydatetime()})
    return request.placed(at=followed.at, market=followed.market.key, source=followed.source)


def _with_forecasts(turn: Turn, request: JobRequest, followed: Followed, planner: str) -> EndedJob:
    """The ended job with the forecasts that would have been issued in each of its slots."""
    settings, start = turn.settings, record_start(first_slot(request, step_of(turn.settings)))
    (history,) = read_all(turn, [(followed, start)])
    peers = peers_of(turn, [followed], start=start)[followed]
    job, first = job_on(request, history)
    if planner == PERFECT:
        ended = ended_job(job, first, history, [], peers)
        return replace(ended, forecasts=list(perfect_forecasts(ended.window, settings.planning_horizon)))
    grid = pd.date_range(first, periods=job.deadline_slots, freq=history.step)
    inside = [slot for slot in grid if slot in history.slots]
    forecasts: list[Forecast] = []
    if inside:
        histories, prepared = ready(turn, {followed: inside}, [planner])
        forecasts = forecasts_of(
            histories[followed],
            prepared.batches[followed],
            settings=settings,
            horizon=settings.planning_horizon,
        )
    return ended_job(job, first, history, forecasts, peers)


def replayed_row(scored: Scored, i: int, market: Market, source: str, planner: str) -> ReplayedPolicy:
    """One replay as plain values but for what was held: cost, utility, finish, hindsight bracket.

    ``market`` and ``source`` are the job's home, or the first it could have been in. Of a job without a value of its own nothing is
    said that hangs on the one that was made up for it, as in `outcomes_of`.
    """
    ended, outcome, row = scored.ended, scored.outcomes[i], scored.ledger[i]
    step = pd.Timedelta(hours=ended.window.slot_hours)
    finish = None if outcome.finish_slots is None else ended.start + outcome.finish_slots * step
    valued = not ended.job.must_finish
    return {
        "job": ended.job.name,
        "market": market.key,
        "source": source,
        "policy": outcome.policy,
        "forecaster": planner,
        "from": ended.start,
        "deadline": ended.start + ended.job.deadline_slots * step,
        "deadline_slots": ended.job.deadline_slots,
        "cost_usd": outcome.total_cost_usd,
        "value_usd": outcome.value_usd if valued else None,
        "utility_usd": outcome.utility_usd if valued else None,
        "utility": row.utility if valued else None,
        "finish": finish,
        "finish_slots": outcome.finish_slots,
        "on_time": outcome.on_time,
        "spot_share": outcome.spot_share,
        "on_demand_only_usd": row.on_demand_only_usd,
        "saved_usd": row.on_demand_only_usd - outcome.total_cost_usd,
        "saved_share": 1.0 - outcome.total_cost_usd / row.on_demand_only_usd,
        "hindsight": {
            "low": scored.hindsight_low if valued else None,
            "high": scored.hindsight_high if valued else None,
            "cost_usd": scored.hindsight_usd,
        },
        "gap_to_hindsight": row.gap_to_hindsight,
        "must_finish": ended.job.must_finish,
        "gaps": int(np.count_nonzero(~ended.window.observed)),
        "synthetic": list(ended.assumptions),
    }


def held_in(window: MarketWindow | None, t: int, at: pd.Timestamp, held: Allocation) -> Held:
    """What was held in a slot, which begins ``at``, and what the market showed then; ``window`` is None where nothing was held."""
    seen = window is not None and bool(window.observed[t])
    return {
        "slot": at,
        "on_demand": held.on_demand,
        "spot": held.spot,
        "price_usd": float(window.price[t]) if window is not None and seen else None,
        "available": int(window.available[t]) if window is not None and seen else None,
    }


# ---
# A job that may move on the records of its markets (M11).


def replayed_over_markets(
    turn: Turn,
    job: JobRequest,
    *,
    market: str | None,
    policy: str,
    start: pd.Timestamp | None,
    model: str | None,
) -> list[MovedSlots]:
    """What one mover, or ``all``, would have made of a job that may move on the records of its markets, the best first.

    ``market`` is its home if given. Raises `PolicyError` for a mover that there is not, `MarketError` if the job starts after the
    records or one of them does not cover it.
    """
    planner = model or turn.settings.planner
    settings = turn.settings
    asked, places = placed_among(turn, job, market=market)
    movers = MOVERS if asked.market is None else (*MOVERS, Alone(policy=Stochastic(), market=0))
    chosen = [mover for mover in movers if policy in ("all", mover.name)]
    if not chosen:
        raise PolicyError(
            f"mover {policy!r}", expected=f"all, or one of {', '.join(mover.name for mover in movers)}"
        )
    request = _placed_in_record(job, places[0], start, settings)
    alone = []
    for one in places:
        turn.say(f"replay: {one.key}")
        own = request.model_copy(update={"market": one.market.key, "source": one.source})
        alone.append(_with_forecasts(turn, own, one, planner))
    check_job(alone[0].job, uses_spot=True)
    first = record_start(alone[0].start)
    histories = read_all(turn, [(one, first) for one in places])
    ended = EndedMovable(
        job=movable_job(request, histories, None if asked.market is None else 0),
        alone=tuple(alone),
        markets=tuple(one.market.key for one in places),
    )
    scored = score_movable(ended, chosen, each_market=policy == "all")
    return [_moved_row(scored, i, ended, places, planner) for i in _best_first(scored)]


def _moved_row(
    scored: Scored, i: int, ended: EndedMovable, places: Sequence[Followed], planner: str
) -> MovedSlots:
    outcome, first = cast("MovedOutcome", scored.outcomes[i]), scored.ended
    step = pd.Timedelta(hours=first.window.slot_hours)
    slots: list[MovedSlot] = []
    for t, (held, m) in enumerate(zip(outcome.allocations, outcome.places, strict=True)):
        own = held_in(None if m is None else ended.windows[m], t, first.start + t * step, held)
        slots.append({**own, "market": None if m is None else ended.markets[m]})
    return {
        **replayed_row(scored, i, places[0].market, places[0].source, planner),
        "policy": outcome.policy.replace("market 0", "its home"),
        "markets": list(ended.markets),
        "moves": outcome.moves,
        "moving_usd": outcome.moving_usd,
        "gaps": int(sum(np.count_nonzero(~window.observed) for window in ended.windows)),
        "synthetic": sorted(first.assumptions),
        "allocations": slots,
    }
