"""The stages of a turn and their order: ingest, forecast, decide, deliver, score, report (M1.4, M2.4, M5)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pandas as pd
import pyarrow as pa

from slackwater.flows.config import Settings
from slackwater.flows.delivery import deliver as hand_over
from slackwater.flows.feeds.fetch import fetch_due
from slackwater.flows.ledger.fields import decision_row
from slackwater.flows.ledger.jobs import (
    OpenJob,
    StoredJob,
)
from slackwater.flows.ledger.records import (
    LIVE,
    save_decisions,
    save_runs,
    save_scored,
)
from slackwater.flows.turn.context import (
    Counts,
    Pool,
    Reads,
    Turn,
    Work,
    find_work,
    peers_of,
    planned_forecasts,
    read_all,
    read_pool,
    require_markets,
    try_histories,
)
from slackwater.flows.turn.following import Followed
from slackwater.flows.turn.forecast import MeasuredErrors, forecast_turns
from slackwater.flows.turn.opening import JobForecasts, JobLedger, PlacedJob, open_jobs, read_ledger
from slackwater.flows.turn.recent_errors import STEPS, errors_of
from slackwater.optimization.fleet.competition import Trajectory, decide_all
from slackwater.optimization.job.request import JobRequest, job_on
from slackwater.optimization.moving.definition import MultiMarketPolicy
from slackwater.optimization.moving.score import EndedMovable, ended_movable, score_movable
from slackwater.optimization.moving.terms import job_in_markets
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.replay.decision import RAISED, Decision, Effort, Fan, Undecided, record_start
from slackwater.optimization.replay.score import EndedJob, Scored, ended_job, score_job
from slackwater.optimization.window.plan import Allocation
from slackwater.warehouse.amounts import plural
from slackwater.warehouse.errors import InputError, MarketError, why_raised
from slackwater.warehouse.history import History
from slackwater.warehouse.observations import (
    Appended,
    append,
    find_source,
    observed_sources,
    observed_span,
)
from slackwater.warehouse.observations import ingest as read_files
from slackwater.warehouse.sources.contract import Batch, Kind, SourceOptions
from slackwater.warehouse.sources.simulated import generate, said

if TYPE_CHECKING:
    from slackwater.flows.schemas.forms import Ingested, RecentError, TurnAnswer, TurnError


# ---
# Ingest new observations: files of any source, or the simulated market up to the logical time.

#: Number of reasons for rejected rows that are printed, the most frequent first.
MOST_REASONS = 3
#: Most minutes between observations of the simulated market.
SIMULATED_STEP = 10


def counts_of(name: str, done: Appended) -> Counts:
    """Return the rows of a source counted by result."""
    return {name: {"added": done.added, "repeated": done.repeated, "rejected": done.rejected}}


def say_rejected(say: Callable[[str], None], name: str, done: Appended) -> None:
    """Print how many values were set aside and rows rejected, with the most frequent reasons; nothing if none was."""
    for reason, count in done.set_aside.items():
        say(f"{count:,} values of {name} set aside: {reason}; their rows are kept")
    if done.rejected:
        most = [f"{count:,} {reason}" for reason, count in list(done.reasons.items())[:MOST_REASONS]]
        more = (
            [f"{len(done.reasons) - MOST_REASONS} more reasons"] if len(done.reasons) > MOST_REASONS else []
        )
        say(f"{done.rejected:,} rows of {name} rejected: {'; '.join([*most, *more])} (`slackwater rejected`)")


def last_observed(folder: Path) -> pd.Timestamp:
    """Return the latest time in a folder's tidy tables, the default time of a run on it.

    Raises `InputError` if the folder has no such table.
    """
    latest: list[pd.Timestamp] = []
    source = find_source("tabular")
    for path in source.files([folder]):
        for batch in source.read(path, SourceOptions(values={})):
            if batch.kind != "rejected" and batch.table.num_rows:
                times = pd.to_datetime(
                    batch.table.column("observed_at").to_pandas(), utc=True, errors="coerce"
                )
                latest.append(times.max())
    if not latest:
        raise InputError(f"folder {folder} has no observation", expected="tidy price or availability tables")
    return max(latest)


def _simulated_step(slot_minutes: int) -> int:
    """Return the minutes between simulated observations: a divisor of the day, at most a slot long."""
    return max(
        minutes for minutes in range(1, min(SIMULATED_STEP, slot_minutes) + 1) if 24 * 60 % minutes == 0
    )


def ingest_simulated(turn: Turn) -> Counts:
    """Ingest the simulated market up to the turn's time: ``simulated_days`` at first, later the time since its last row."""
    settings = turn.settings
    label = simulated_label(settings)
    first, last = observed_span(turn.store, label)
    if last == turn.at:  # an interrupted turn has ingested already: nothing is new
        return {"simulated": {"added": 0, "repeated": 0, "rejected": 0}}
    oldest = turn.at - pd.Timedelta(days=settings.simulated_days)
    # A backfilled turn before the first turn gets its full simulated past.
    start = oldest if first is None or last is None or oldest < first else min(last, turn.at)
    batches = generate(
        start.to_pydatetime(),
        turn.at.to_pydatetime(),
        seed=settings.seed,
        step_minutes=_simulated_step(settings.step_minutes),
        label=label,
    )
    done = append(
        turn.store,
        _joined_batches(batches),
        source="simulated",
        assumptions=said(settings.seed),
        imported_at=turn.at,
    )
    return counts_of("simulated", done)


def simulates(turn: Turn) -> bool:
    """Return whether a turn without folder and feeds simulates its market: never next to observations of another source."""
    return set(observed_sources(turn.store)) <= {simulated_label(turn.settings)}


def simulated_label(settings: Settings) -> str:
    """Return the source label of the simulated market."""
    return f"simulated:{settings.seed}"


def _joined_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield a single batch per kind: every batch is staged by separate statements, and each market has two."""
    tables: dict[Kind, list[pa.Table]] = {}
    for batch in batches:
        tables.setdefault(batch.kind, []).append(batch.table)
    for kind, own in tables.items():
        yield Batch(kind=kind, table=pa.concat_tables(own, promote_options="permissive"))


# ---
# Decide the next slot of every open job, given its state and its policy (M2.4).


def effort_of(settings: Settings) -> Effort:
    """Return the effort limits of a decision."""
    return Effort(solver_seconds=settings.solver_seconds, risk_paths=settings.risk_paths, seed=settings.seed)


#: A decision as plain values.
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The decisions of a turn, sorted by job, and messages on running jobs without a decision."""

    rows: tuple[Row, ...] = ()
    left_out: tuple[str, ...] = ()


def decide_jobs(turns: Sequence[Turn], works: Sequence[Work], pool: Pool) -> list[Decided]:
    """Decide the slot of every running job in each of ascending turns; a decision issued before is read back.

    The forecasts of the turns must be stored, and ``pool`` must have the rounds learned before each
    turn. The decisions of a job use its earlier decisions (M2.4), and jobs are never given more
    spot in total than is available (M3.7).
    """
    names = [job.request.name for work in works for job, _ in work.running]
    ledger = read_ledger(turns[-1].store, names)
    rows: list[list[Row]] = [[] for _ in turns]
    lacking: list[tuple[int, PlacedJob]] = []
    for place, work in enumerate(works):
        for job, followed in work.running:
            name = job.request.name
            old = [row for row in ledger.decisions[name] if pd.Timestamp(row["slot"]) == followed.at]
            rows[place] += old
            if not old:
                lacking.append((place, (job, work.places.get(name, (followed,)))))
    running: list[tuple[int, OpenJob]] = []
    left_out: list[list[str]] = [[] for _ in turns]
    standing = _open_states(turns, lacking, ledger, pool)
    for (place, (job, _)), opened in zip(lacking, standing, strict=True):
        if isinstance(opened, Exception):
            left_out[place].append(undecided(job, opened))
        else:
            running.append((place, opened))
    fresh = decide_together(
        running,
        rows,
        effort_of(turns[-1].settings),
        turns[-1].fan,
    )
    for place, own in enumerate(fresh):
        left_out[place] += [text for text in own.values() if isinstance(text, str)]
        for text in left_out[place]:
            turns[place].say(text)
    # In the order of the turn's jobs, whatever the order of the decisions.
    new = [
        [row for job, _ in work.running if isinstance(row := own.get(job.request.name), dict)]
        for work, own in zip(works, fresh, strict=True)
    ]
    _save(turns, new, left_out)
    return [
        Decided(rows=tuple(sorted(old + own, key=lambda row: str(row["job"]))), left_out=tuple(texts))
        for old, own, texts in zip(rows, new, left_out, strict=True)
    ]


def decide_together(
    running: Sequence[tuple[int, OpenJob]],
    issued: Sequence[Sequence[Row]],
    effort: Effort,
    fan: Fan,
) -> list[dict[str, Row | str]]:
    """Return for each of ascending turns the new decision by job, or a message why a job has none (M3.7).

    Finished jobs are left out. ``running`` are job states with the index of their turn and
    ``issued`` the decisions issued before, whose spot is not available any more.
    """
    opened: dict[str, list[tuple[int, OpenJob]]] = {}
    for place, one in running:
        opened.setdefault(one.request.name, []).append((place, one))
    promised: Counter[tuple[pd.Timestamp, str]] = Counter()
    for row in (row for rows in issued for row in rows):
        promised[pd.Timestamp(row["slot"]), f"{row['market']}@{row['source']}"] += int(row["spot"])
    trajectories = [_trajectory([one for _, one in own]) for own in opened.values()]
    made = decide_all(trajectories, effort, promised=promised, fan=fan)
    fresh: list[dict[str, Row | str]] = [{} for _ in issued]
    for (name, own), decisions in zip(opened.items(), made, strict=True):
        before: dict[int, tuple[str | None, Allocation]] = {}
        for (place, one), decision in zip(own, decisions, strict=True):
            if isinstance(decision, Undecided):
                fresh[place][name] = f"job {name} is not decided: {decision.why}"
            elif decision is not None:
                row = row_of(one.after(before), decision)
                before[decision.slot] = (
                    row["market"] if decision.allocation.total else None,
                    decision.allocation,
                )
                fresh[place][name] = row
    return fresh


def _trajectory(states: Sequence[OpenJob]) -> Trajectory:
    """Return the trajectory of a job over the turns in which it lacks a decision."""
    return Trajectory(
        slots=tuple(state.live for state in states),
        policies=tuple(state.policy for state in states),
        keys=tuple(state.places for state in states),
        markets=tuple(tuple(map(_shared_count_key, state.histories)) for state in states),
    )


def _shared_count_key(history: History) -> str:
    """Return the name of the market and source whose count jobs share."""
    return f"{history.market.key}@{history.source}"


def undecided(job: StoredJob, why: Exception) -> str:
    """Return the message that a running job has no decision, and why."""
    return f"job {job.request.name} is not decided: {why_raised(why)}"


def _with_forecasts(job: PlacedJob, forecasts: JobForecasts) -> PlacedJob:
    """Return a job with only those of its markets that have a forecast; with all of them if its home has none.

    A market that could not be forecast is left out: the forecast stage has reported the reason. If
    no market has a forecast, all are returned, and the decision notes that it has no forecast.
    """
    stored, markets = job
    name = stored.request.name
    known = tuple(
        one for one in markets if any(made.issued_at == one.at for made in forecasts.get((name, one.key), ()))
    )
    homeless = stored.request.may_move and stored.request.market is None
    return (stored, known) if known and (homeless or markets[0] in known) else job


def _open_states(
    turns: Sequence[Turn], lacking: Sequence[tuple[int, PlacedJob]], ledger: JobLedger, pool: Pool
) -> list[OpenJob | Exception]:
    """Return the state of each job that lacks a decision at its turn's time, or the error; turns ascend.

    A state uses only data known at that time.
    """
    if not lacking:
        return []
    newest = {(job.request.name, one.key): (job, one) for _, (job, markets) in lacking for one in markets}
    forecasts = planned_forecasts(turns[-1], list(newest.values()))
    deciding = pool.deciders([turn.at for turn in turns])
    opened: list[OpenJob | Exception] = []
    for place, own in groupby(lacking, key=lambda one: one[0]):
        jobs = [_with_forecasts(job, forecasts) for _, job in own]
        opened += open_jobs(turns[place], jobs, ledger=ledger, forecasts=forecasts, by=deciding[place])
    return opened


def row_of(running: OpenJob, decision: Decision) -> Row:
    """Return a decision as plain values, with the reason for its policy."""
    return decision_row(running, decision) | {"chosen_because": running.chosen_because}


def _save(turns: Sequence[Turn], made: Sequence[Sequence[Row]], left_out: Sequence[Sequence[str]]) -> None:
    store = turns[-1].store
    with store.transaction():
        save_decisions(
            store, [(turn.run_id, row) for turn, own in zip(turns, made, strict=True) for row in own]
        )
        save_runs(
            store,
            [
                turn.done("allocate", {"decisions": len(own)} | ({"left_out": list(texts)} if texts else {}))
                for turn, own, texts in zip(turns, made, left_out, strict=True)
            ],
        )


# ---
# The score stage of one turn or of many at once: each ended job is replayed once and adds its round
# in its turn (M5).


def score_jobs(turns: Sequence[Turn], works: Sequence[Work], pool: Pool) -> tuple[list[list[str]], Pool]:
    """Replay the pool on every ended job, multi-market policies on multi-market jobs, and add a round for each.

    Returns the names of the scored jobs of each turn, and the pool with the new rounds. A job that
    cannot be replayed is reported and left out. On a job with a round, only policies missing from
    it are replayed: they are new in the pool.
    """
    alone: list[dict[str, Any]] = []
    moving: list[dict[str, Any]] = []
    due: list[list[StoredJob]] = []
    left_out: list[list[str]] = []
    seen: set[str] = set()
    for turn, work in zip(turns, works, strict=True):
        jobs = [
            (job, followed)
            for job, followed in work.ended
            if _counts(job)
            and job.request.name not in seen
            and pool.group(job.request).rounds.lacking(job.request.name)
        ]
        seen.update(job.request.name for job, _ in jobs)
        own = [pair for pair in jobs if not pair[0].request.may_move]
        standing = dict(
            zip((job.request.name for job, _ in own), ended_jobs(turn, work.ended, own), strict=True)
        )
        due.append([])
        left_out.append([])
        for job, _ in jobs:
            name, moves = job.request.name, job.request.may_move
            ended = _ended_movable(turn, job, work.places[name]) if moves else standing[name]
            if isinstance(ended, Exception):
                left_out[-1].append(f"job {name} is not scored: {why_raised(ended)}")
                continue
            windows = ended.windows if isinstance(ended, EndedMovable) else (ended.window,)
            if not all(window.availability_observed for window in windows):
                left_out[-1].append(
                    f"job {name} is not scored: availability was not observed, and a replay would assume that spot is never lost"
                )
                continue
            if moves:
                moving.append({"ended": ended, "movers": pool.movers.lacking(name)})
            else:
                alone.append({"ended": ended, "policies": pool.lacking(name)})
            due[-1].append(job)
    fan = turns[-1].fan
    made: dict[bool, Iterator[Scored | str]] = {
        False: iter(fan(score_ended, alone)),
        True: iter(fan(score_ended_movable, moving)),
    }
    found = [[next(made[job.request.may_move]) for job in own] for own in due]
    for turn, own_found, texts in zip(turns, found, left_out, strict=True):
        texts += [text for text in own_found if isinstance(text, str)]
        for text in texts:
            turn.say(text)
    kept = [[one for one in own_found if isinstance(one, Scored)] for own_found in found]
    done = [[one.ended.job.name for one in own] for own in kept]
    store = turns[-1].store
    with store.transaction():
        learned = save_scored(
            store,
            [(turn.at, own) for turn, own in zip(turns, kept, strict=True)],
            groups=[(one.rounds, one.learner) for one in (pool, pool.movers)],
        )
        save_runs(
            store,
            [
                turn.done(
                    "score",
                    {"jobs": len(own), "learner": turn.settings.learner}
                    | ({"left_out": texts} if texts else {}),
                )
                for turn, own, texts in zip(turns, done, left_out, strict=True)
            ],
        )
    return done, pool.learned(*learned)


def score_ended(ended: EndedJob, policies: Sequence[Policy[Any]]) -> Scored | str:
    """Return the result of `score_job`, or a message why the job cannot be replayed."""
    try:
        return score_job(ended, policies)
    except RAISED as error:
        return f"job {ended.job.name} is not scored: {why_raised(error)}"


def score_ended_movable(ended: EndedMovable, movers: Sequence[MultiMarketPolicy[Any]]) -> Scored | str:
    """Return the result of `score_movable`, or a message why the multi-market job cannot be replayed."""
    try:
        return score_movable(ended, movers)
    except RAISED as error:
        return f"job {ended.job.job.name} is not scored: {why_raised(error)}"


def _counts(job: StoredJob) -> bool:
    """Return whether a job is replayed: it can resume (M2.7), and its terms did not change while it ran (M2.9)."""
    return job.request.checkpoint.resumable and not job.changed_under_way


def ended_jobs(
    turn: Turn, ended: Sequence[tuple[StoredJob, Followed]], jobs: Sequence[tuple[StoredJob, Followed]]
) -> list[EndedJob | Exception]:
    """Return each of ``jobs`` on its market's record with the forecasts as issued then, or the error that prevents it.

    ``ended`` are all jobs that ended by the turn; they set how far back the histories of peers are
    read.
    """
    if not jobs:
        return []
    forecasts = planned_forecasts(turn, jobs)
    peers = peers_of(
        turn,
        [followed for _, followed in jobs],
        start=record_start(min(job.start for job, _ in ended)),
    )
    histories = try_histories(turn, [(followed, record_start(job.start)) for job, followed in jobs])
    found: list[EndedJob | Exception] = []
    for (job, followed), history in zip(jobs, histories, strict=True):
        if isinstance(history, MarketError):
            found.append(history)
            continue
        try:
            own = job_on(job.request, history)
            found.append(ended_job(*own, history, forecasts[job.request.name, followed.key], peers[followed]))
        except RAISED as error:
            found.append(error)
    return found


def _ended_movable(turn: Turn, job: StoredJob, places: Sequence[Followed]) -> EndedMovable | Exception:
    """Return an ended multi-market job on the histories of its markets with the forecasts as issued then."""
    start, home = record_start(job.start), job.request.market is not None
    try:
        read = read_all(turn, [(one, start) for one in places])
    except MarketError as error:
        return error
    # Markets read at their own ends may have begun after the job.
    kept = [k for k, one in enumerate(read) if (home and not k) or job.start in one.slots]
    places, histories = [places[k] for k in kept], [read[k] for k in kept]
    forecasts = planned_forecasts(turn, [(job, one) for one in places])
    peers = peers_of(turn, places, start=start)
    try:
        return ended_movable(
            job_in_markets(job.request, histories),
            job.start,
            histories,
            [forecasts[job.request.name, one.key] for one in places],
            [peers[one] for one in places],
        )
    except RAISED as error:
        return error


# ---
# A turn of the loop: cached reads, the stages in order, and the result, with or without a workflow engine.
#
# A stage is a plain function from the results so far to more results. It reads values, computes,
# and writes its rows together with its ledger row, or nothing, so an interrupted turn continues
# with the first missing stage.


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Data that a turn reads once, after its observations are ingested: its work, and the pool with its rounds."""

    work: Work
    pool: Pool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Inputs and results of a turn so far; each stage adds its results.

    ``data``: a folder to ingest (None: the live feeds, or without feeds the simulated market);
    ``page``: path of the report.
    """

    data: Path | None = None
    requests: tuple[JobRequest, ...] = ()
    page: Path = Path("reports/report.html")
    ingested: Counts = field(default_factory=dict)
    known: Known | None = None
    measured: MeasuredErrors = field(default_factory=MeasuredErrors)
    decisions: tuple[Row, ...] = ()
    undecided: tuple[str, ...] = ()
    scored: tuple[str, ...] = ()
    leaderboard: tuple[dict[str, Any], ...] = ()
    movers: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    errors: tuple[dict[str, Any], ...] = ()


Stage = Callable[[Turn, Found], Found]


def ingest(turn: Turn, found: Found) -> Found:
    """Ingest new observations: the tidy tables of a folder, the live feeds that are due, or else the simulated market.

    A market is never simulated next to observations of another source: then the turn uses the data
    in the warehouse. Each page of a feed is stored at once, so that nothing is fetched twice; all
    other rows are stored in a single transaction.
    """
    turn.say("ingest")
    settings, fetched = turn.settings, None
    if found.data is None and settings.feeds and turn.made == LIVE:
        fetched = fetch_due(
            turn.store,
            settings.feeds,
            at=turn.at,
            seed=settings.seed,
            say=turn.say,
            clock=turn.clock,
            bounds=settings.bounds,
        )
    with turn.store.transaction():
        if found.data is not None:
            done = read_files(
                turn.store,
                "tabular",
                found.data,
                imported_at=turn.at,
                bounds=settings.bounds.at(turn.clock),
                progress=turn.say,
            )
            counts = counts_of("tabular", done)
            say_rejected(turn.say, "tabular", done)
        elif settings.feeds:
            counts = {} if fetched is None else fetched
        elif simulates(turn):
            turn.say("the market is SIMULATED")
            counts = ingest_simulated(turn)
        else:
            turn.say("no feeds: on the markets that the warehouse knows")
            counts = {}
        save_runs(turn.store, [turn.done("ingest", counts)])
    return replace(found, ingested=counts)


def know(turn: Turn, found: Found) -> Known:
    """Return the work and the pool of the turn, read once."""
    if found.known is not None:
        return found.known
    pool = read_pool(turn)
    return Known(work=find_work(turn, found.requests, scored=pool.settled()), pool=pool)


def forecast(turn: Turn, found: Found) -> Found:
    """Issue the forecasts of this turn, fill in missing forecasts of past slots, and measure all of them."""
    known = know(turn, found)
    require_markets(known.work)
    turn.say(f"forecast {len(known.work.markets)} markets")
    return replace(found, known=known, measured=forecast_turns([turn], [known.work])[0])


def decide(turn: Turn, found: Found) -> Found:
    """Decide the next slot of every running job; a decision issued before is read back."""
    known = know(turn, found)
    turn.say(f"decide for {plural(len(known.work.running), 'job')}")
    made = decide_jobs([turn], [known.work], known.pool)[0]
    turn.show(made.rows)
    return replace(found, known=known, decisions=made.rows, undecided=made.left_out)


def deliver(turn: Turn, found: Found) -> Found:
    """Deliver the decisions to the sinks; a backfilled turn delivers nothing, as its slot is over."""
    if turn.made == LIVE:
        hand_over(turn.store, turn.settings.sinks, found.decisions, at=turn.at, say=turn.say)
    return found


def score(turn: Turn, found: Found) -> Found:
    """Replay the pool on every ended job and add a round for each."""
    known = know(turn, found)
    if known.work.ended:
        turn.say(f"replay the pool on {plural(len(known.work.ended), 'ended job')}")
    names, pool = score_jobs([turn], [known.work], known.pool)
    return replace(found, known=replace(known, pool=pool), scored=tuple(names[0]))


def report(turn: Turn, found: Found) -> Found:
    """Summarise the results over ended jobs, and write the report page."""
    # Imported here because the drawing modules load slowly and other stages do not need them.
    from slackwater.flows.turn.leaderboard import learned
    from slackwater.flows.turn.panels import panel
    from slackwater.flows.turn.report import report_data, write_report

    turn.say("report")
    known, measured = know(turn, found), found.measured
    data = report_data(
        turn,
        learned=learned(turn, known.pool),
        decisions=list(found.decisions),
        left_out=[*known.work.left_out, *measured.left_out, *found.undecided],
        ingested=found.ingested,
        drawn=[panel(history, measured.forecasts.get(one)) for one, history in measured.histories.items()],
        simulated=found.data is None and not turn.settings.feeds and simulates(turn),
    )
    return replace(
        found,
        known=known,
        leaderboard=tuple(data.learned.leaderboard),
        movers=tuple(data.learned.movers),
        notes=tuple(data.notes),
        errors=tuple(errors_of(data.accuracy, steps=STEPS)),
        page=write_report(data, found.page),
    )


#: The stages of a turn in order.
STAGES: tuple[Stage, ...] = (ingest, forecast, decide, deliver, score, report)
#: Names of the stages that the ledger of runs records.
RECORDED: dict[Stage, str] = {
    ingest: "ingest",
    forecast: "forecast",
    decide: "allocate",
    score: "score",
}


def run_stage(stage: Stage, turn: Turn, found: Found) -> Found:
    """Run a stage; if the ledger records it, the reason of a failure is stored."""
    name = RECORDED.get(stage)
    if name is None:
        return stage(turn, found)
    with turn.failure_kept(name):
        return stage(turn, found)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """Results of a turn as plain values."""

    run_id: str
    at: pd.Timestamp
    ingested: Counts
    accuracy: list[dict[str, Any]]
    decisions: list[Row]
    leaderboard: list[dict[str, Any]]
    notes: list[str]
    report: Path
    movers: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)

    def answer(self) -> TurnAnswer:
        """Return the object that ``slackwater run --json`` prints."""
        own: TurnAnswer = {
            "at": self.at.isoformat(),
            "run": self.run_id,
            "ingested": cast("dict[str, Ingested]", self.ingested),
            "accuracy": cast("list[TurnError]", self.accuracy),
            "forecast_errors": cast("list[RecentError]", self.errors),
            "decisions": self.decisions,
            "leaderboard": self.leaderboard,
            "notes": self.notes,
            "report": str(self.report),
        }
        if self.movers:
            own["movers"] = self.movers
        return own


def whole_turn(
    turn: Turn,
    *,
    data: Path | None,
    requests: Sequence[JobRequest],
    report: Path,
    run: Callable[[Stage, Turn, Found], Found] = run_stage,
) -> TurnResult:
    """Run every stage of a turn in order, each by ``run``, which has the interface of `run_stage`."""
    from slackwater.flows.turn.report import accuracy_rows  # loads slowly, as in `report`

    found = run(ingest, turn, Found(data=data, requests=tuple(requests), page=report))
    # All later stages share a cache of the ingested observations.
    turn = replace(turn, reads=Reads(turn.store))
    for stage in STAGES[1:]:
        found = run(stage, turn, found)
    return TurnResult(
        run_id=turn.run_id,
        at=turn.at,
        ingested=found.ingested,
        accuracy=accuracy_rows(found.measured.accuracy),
        decisions=list(found.decisions),
        leaderboard=list(found.leaderboard),
        notes=list(found.notes),
        report=found.page,
        movers=list(found.movers),
        errors=list(found.errors),
    )
