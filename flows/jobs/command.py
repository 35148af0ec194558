"""Commands ``job add``, ``change``, ``list``, ``show`` and ``report``; modules that compute are imported when called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import (
    MOST_LISTED,
    Answer,
    MarketName,
    Patterns,
    Query,
    QueryAt,
    all_fit,
    option,
    parsed_duration,
    parsed_time,
    shared,
)
from slackwater.flows.show.blocks import Banner, Block, Column, Notes, Section, Table, columns_by_key
from slackwater.flows.show.formats import auto, percent, plural, time, usd, utc

if TYPE_CHECKING:
    import pandas as pd

    from slackwater.optimization.job.definition import Job
    from slackwater.optimization.job.request import JobRequest
    from slackwater.warehouse.history import History, Market

REPORT_COLUMNS = {
    "reported_at": "at (UTC)", "progress": "reported", "predicted": "predicted", "off": "difference",
    "on_demand": "on-demand", "spot": "spot", "finished": "finished", "known_at": "known at", "note": "note",
}  # fmt: skip
REVISION_COLUMNS = {
    "revised_at": "decided at (UTC)", "lost_at": "spot lost at", "spot_left": "spot left", "on_demand": "on-demand",
    "spot": "spot", "reason": "why",
}  # fmt: skip
#: Keys of an outcome in the JSON answer, and further keys for multi-market jobs.
OUTCOME_KEYS = (
    "policy", "model", "cost_usd", "on_demand_only_usd", "saved_usd", "saved_share", "on_time", "finish_slots", "spot_share",
    "utility_usd",
    "hindsight_usd", "hindsight_high_usd",
)  # fmt: skip
MOVED_KEYS = ("moves", "moving_usd", "places")


def add(
    *files: Annotated[
        Path,
        option("Job files (TOML); `slackwater init --job` writes one with every key.", metavar="FILE..."),
    ],
    market: MarketName = None,
    name: Annotated[
        str | None, option("Name of the job, in place of the name in the file; for a single file only.")
    ] = None,
    session: QueryAt = QueryAt(),
) -> Answer:
    """Add jobs to the warehouse; every later run plans them until they end. An unusable file does not affect the others."""
    from slackwater.optimization.job.request import read_request
    from slackwater.warehouse.errors import JobError, SlackwaterError

    if not files:
        raise JobError(
            "no job file",
            expected="at least one job file",
            remedy="`slackwater job add JOB.toml`; `slackwater init --job` writes a job file",
        )
    if len(files) == 1:
        return _add(read_request(files[0]), market, name, session)
    if name:
        raise JobError(
            f"--name {name} with {len(files)} files", expected="one file", remedy="leave --name out"
        )
    answers: list[Answer] = []
    refused: list[dict[str, str]] = []
    for file in files:
        try:
            answers.append(_add(read_request(file), market, None, session))
        except SlackwaterError as error:
            refused.append({"file": str(file), "why": str(error)})
    added = [answer.value["job"] for answer in answers]
    about = f"{plural(len(added), 'job')} added" + (f": {', '.join(added)}." if added else ".")
    return Answer(
        title="Jobs",
        value={"jobs": [answer.value for answer in answers], "refused": refused},
        about=about,
        banner=Banner("Not added:", "; ".join(f"{row['file']}: {row['why']}" for row in refused))
        if refused
        else None,
        blocks=[block for answer in answers for block in answer.blocks],
        notes=[
            f"Warning: job {value['job']}: {value['shortfall']}"
            for value in (answer.value for answer in answers)
            if value["shortfall"]
        ]
        + [note for answer in answers for note in answer.notes],
        exit_code=2 if refused else 0,
    )


def _add(request: JobRequest, market: str | None, name: str | None, session: QueryAt) -> Answer:
    """Add a job; a job without markets gets proposed markets with a ranking."""
    import pandas as pd

    from slackwater.flows.clock import now
    from slackwater.flows.following import Freshness, step_of
    from slackwater.flows.histories import KnownMarkets, read_all
    from slackwater.flows.ledger.jobs import save_jobs
    from slackwater.flows.places import placed_in, propose_markets, uncounted_note
    from slackwater.flows.query import job_moment, named_job, start_note
    from slackwater.optimization.job.definition import infeasible_by
    from slackwater.optimization.job.markets import moves, runs_in_markets
    from slackwater.optimization.job.request import first_slot, shortfall_words, slot_note
    from slackwater.optimization.job.times import times_rows

    if name:
        request = request.model_copy(update={"name": name})
    settings, ranked, note_of_choice, clock = session.config, list[dict[str, Any]](), "", now()
    with session.writing() as store:
        moment = job_moment(store, settings, request, given=session.time, clock=clock)
        known = KnownMarkets(store=store, at=moment.at, settings=settings, own_end=moment.own_end)
        if request.names_no_market and market is None:
            request, note_of_choice = propose_markets(known, request)
        placed, places = placed_in(known, request, market=market)
        histories = read_all(known, [(place, place.at) for place in places])
        runs = runs_in_markets(placed, histories)
        added = save_jobs(store, [placed], origin="user", at=places[0].at, step=step_of(settings))
        if note_of_choice and first_slot(placed, step_of(settings)) <= places[0].at:
            from slackwater.flows.plans.answers import RANKED_COLUMNS, ranked_rows
            from slackwater.flows.turn.context import Turn

            turn = Turn(
                store=store,
                at=moment.at,
                settings=settings,
                run_id="add",
                own_end=moment.own_end,
                clock=clock,
            )
            ranked, columns = ranked_rows(turn, named_job(turn, placed.name)), RANKED_COLUMNS
        notes = [uncounted_note(known, placed, places)]
        if session.time is None:
            notes.append(start_note(known, placed, places, clock=clock))
    newest = max(
        histories,
        key=lambda history: history.newest_count or history.newest_price or pd.Timestamp(0, tz="UTC"),
    )
    old = Freshness(clock=clock if moment.own_end else None).stale(newest, places[0].at)
    run, markets = runs[0], [history.market for history in histories]
    names = [f"{row['market']}@{row['source']}" for row in ranked] or [place.key for place in places]
    value = {
        "job": run.name,
        "added": bool(added),
        "market": placed.market,
        "source": placed.source,
        **({"markets": names} if placed.may_move else {}),
        "start": placed.start,
        "deadline": placed.deadline,
        "deadline_slots": run.deadline_slots,
        **_units_of(placed, runs, markets),
        "value_usd": request.value_usd,
        "must_finish": run.must_finish,
        "infeasible_by_slots": min(infeasible_by(run, slot_hours=histories[0].slot_hours) for run in runs),
        **(
            {"move_usd_most": moves(placed, markets, step=step_of(settings)).most_usd}
            if placed.may_move
            else {}
        ),
        "note": "; ".join(
            [
                *_terms_note(placed, runs),
                *_hourly_notes(placed, runs, histories),
                *_roundings(placed, histories),
                *filter(None, [slot_note(placed, histories[0].step)]),
            ]
        ),
        "times": times_rows(placed),
    }
    short: list[str] = [
        shortfall_words(run, first_slot(placed, histories[0].step), histories[0].step) for run in runs
    ]
    cannot = short[0] if all(short) else ""
    value |= {"shortfall": cannot or None, "stale": old}
    if note_of_choice:
        value |= {"proposed": note_of_choice, "ranked": ranked}
    shown = value | ({"markets": "; ".join(names)} if placed.may_move else {})
    blocks: list[Block] = [*_old(old, places[0].at), Table("Job", [shown], _columns(value))]
    if ranked:
        blocks.append(
            Table(
                "Markets of the job, ranked by expected total cost if it runs there in the next slot",
                ranked,
                columns,
            )
        )
    return Answer(
        title=f"Job {run.name}",
        value=value,
        blocks=blocks,
        banner=_shortfall_banner(cannot),
        notes=[*filter(None, notes)],
    )


def _terms_note(request: JobRequest, runs: Sequence[Job]) -> list[str]:
    if request.may_move and len(runs) > 1:
        free = "" if request.market else "; its first start is not a move and costs nothing extra"
        return [f"runs in the best of {plural(len(runs), 'market')} and may move{free}"]
    hard = "hard deadline: no value given, so the job is never abandoned while it can still finish"
    return [hard] if runs[0].must_finish else []


def _columns(value: Mapping[str, Any]) -> dict[str, Column | str]:
    """Return the columns of an added job, without the imputed value of a job with a hard deadline."""
    hidden = {
        "added", "ranked", "shortfall", "stale", "n_min", "n_max", "gpus_per_instance", "workload", "workload_unit",
        "workload_instance_hours", "infeasible_by_slots", "times",
    }  # fmt: skip
    hidden |= {"value_usd"} if value["must_finish"] else set()
    hidden |= {"move_usd_most"} if not value.get("move_usd_most") else set()
    columns = columns_by_key(*(key for key in value if key not in hidden))
    if "move_usd_most" in columns:
        columns["move_usd_most"] = Column(heading="most expensive move", unit="$", format=usd)
    return columns


def _old(stale: str | None, at: pd.Timestamp) -> list[Block]:
    """Return a warning that the record at whose end the job was placed is stale, and how to place it otherwise."""
    if not stale:
        return []
    return [
        Notes(
            [
                f"STALE DATA: {stale}. Without a given start or deadline, the job starts at {utc(at)}: `slackwater run --at "
                f"{at:%Y-%m-%dT%H:%MZ}` decides that slot; use --at TIME to add a job as of a different time."
            ]
        )
    ]


def _shortfall_banner(shortfall: str | None) -> Banner | None:
    return Banner("Warning:", shortfall) if shortfall else None


def _roundings(request: JobRequest, histories: Sequence[History]) -> list[str]:
    from slackwater.optimization.job.units import rounding_notes, types_without_room

    markets = {history.market.instance_type: history.market for history in histories}
    return [
        *(text for market in markets.values() for text in rounding_notes(request, market)),
        *types_without_room(request),
    ]


def _hourly_notes(request: JobRequest, runs: Sequence[Job], histories: Sequence[History]) -> list[str]:
    """Return how ``max_hourly_usd`` limits the instances, once for each number and price."""
    from slackwater.optimization.job.request import hourly_note

    notes = (hourly_note(request, run, history) for run, history in zip(runs, histories, strict=True))
    return [note for note in dict.fromkeys(notes) if note]


def _units_of(request: JobRequest, runs: Sequence[Job], markets: Sequence[Market]) -> dict[str, Any]:
    """Return sizes and work of a multi-market job per instance type; a number is None where types differ."""
    from slackwater.optimization.job.units import instance_hours_of, size_words, works_words

    types = {market.instance_type: (run, market) for run, market in zip(runs, markets, strict=True)}

    def same(values: list[Any]) -> Any:
        return values[0] if all(value == values[0] for value in values) else None

    return {
        "sizes": "; ".join(size_words(request, market) for _, market in types.values()),
        "n_min": same([run.n_min for run, _ in types.values()]),
        "n_max": same([run.n_max for run, _ in types.values()]),
        "gpus_per_instance": same([run.gpus for run, _ in types.values()]),
        "work": works_words(request, list(types.values())),
        "workload": request.workload.amount,
        "workload_unit": request.workload.unit,
        "workload_instance_hours": same([instance_hours_of(request, run) for run, _ in types.values()]),
    }


def change(
    job: Annotated[str, option("Name of the job, or its job file (TOML) with the new terms.", metavar="JOB")],
    /,
    *,
    deadline: Annotated[str | None, option("New deadline, ISO 8601.", metavar="TIME")] = None,
    deadline_in: Annotated[
        str | None,
        option("New deadline, as a time after the change, such as 12h or 90min.", metavar="DURATION"),
    ] = None,
    workload: Annotated[
        float | None, option("New total work, in the unit of the job's workload.", metavar="AMOUNT")
    ] = None,
    n_max: Annotated[
        int | None, option("New largest number of instances, at least the present number.")
    ] = None,
    gpus_max: Annotated[
        int | None,
        option("New largest number of GPUs, at least the present number; for a job with sizes in GPUs."),
    ] = None,
    value_usd: Annotated[float | None, option("New value of the job if it meets the deadline, USD.")] = None,
    decay: Annotated[
        float | None, option("New decay: the value falls to 0 at so many times the time to the deadline.")
    ] = None,
    budget_usd: Annotated[float | None, option("New budget of the whole job, USD.")] = None,
    max_spot_usd: Annotated[
        float | None, option("New highest price of a spot instance-hour at which the job runs spot, USD.")
    ] = None,
    name: Annotated[str | None, option("Name of the job, in place of the name in the file.")] = None,
    session: QueryAt = QueryAt(),
) -> Answer:
    """Change the terms of a job that has not ended; its progress and its decisions so far are not affected."""
    import pandas as pd

    from slackwater.flows.jobs.change import change_of, change_rows, change_time, not_replayed, with_terms
    from slackwater.flows.ledger.decisions import decisions_of
    from slackwater.flows.ledger.jobs import find_job
    from slackwater.flows.ledger.terms import save_change
    from slackwater.flows.places import as_filed
    from slackwater.flows.turn.context import Turn
    from slackwater.optimization.job.request import read_request
    from slackwater.warehouse.documents import names_file

    terms: dict[str, Any] = {
        "deadline": parsed_time(deadline, "--deadline"), "workload.amount": workload, "n_max": n_max, "gpus_max": gpus_max,
        "value_usd": value_usd, "decay": decay, "budget_usd": budget_usd, "max_spot_usd": max_spot_usd,
    }  # fmt: skip
    terms = {key: value for key, value in terms.items() if value is not None}
    span = None if deadline_in is None else parsed_duration(deadline_in, "--deadline-in")
    filed = read_request(Path(job)) if names_file(job) else None
    given = [f"--{key.partition('.')[0].replace('_', '-')}" for key in terms]
    _check_asked(job, given + (["--deadline-in"] if span is not None else []), filed is not None)
    wanted = name or (filed.name if filed else job)
    _need_warehouse(wanted, session)
    with session.writing() as store:
        stored, decisions = find_job(store, wanted), decisions_of(store, wanted)
        slots = [pd.Timestamp(row["slot"]) for row in decisions]
        at = change_time(store, stored, slots, session.moment(store), session.config)
        if filed is not None:
            request = as_filed(filed.model_copy(update={"name": wanted}), stored)
        else:
            request = with_terms(stored.request, terms if span is None else terms | {"deadline": at + span})
        turn = Turn(store=store, at=at, settings=session.config, run_id="change")
        with store.transaction():
            changed = save_change(store, request, at=at)
            found = change_of(turn, stored, request, decisions) if changed else None
        after = find_job(store, wanted)
    value: dict[str, Any] = {
        "job": wanted,
        "changed": changed,
        "known_at": after.known_at,
        "counts_from": None,
        "changes": [],
        "deadline": request.deadline,
        "shortfall": None,
        "notes": [],
    }
    if found is None:
        same = f"Nothing changed: job {wanted} already has these terms."
        return Answer(title=f"Job {wanted}", value=value, blocks=[same])
    issued = [f"the decision already issued for {utc(at)} does not change"] if at in slots else []
    value |= {
        "counts_from": found.counts_from,
        "changes": change_rows(found.changes),
        "shortfall": found.shortfall,
        "notes": [*issued, *found.unknown, *not_replayed(after)],
    }
    return Answer(
        title=f"Job {wanted}",
        value=value,
        blocks=[_terms_table(f"Changed terms, valid from {utc(at)}", value["changes"])],
        notes=value["notes"],
        banner=_shortfall_banner(found.shortfall),
    )


def _check_asked(job: str, options: Sequence[str], by_file: bool) -> None:
    """Raise `JobError` unless a change is given either by a file or by options, and with at most one deadline."""
    from slackwater.warehouse.errors import JobError

    remedy = "see `slackwater job change --help`"
    if by_file and options:
        raise JobError(
            f"new terms in both {job} and {', '.join(options)}",
            expected="either the file or options",
            remedy=remedy,
        )
    if not by_file and not options:
        raise JobError(
            f"nothing to change of job {job!r}",
            expected="a new term, such as --deadline 2026-03-12T18:00Z, or a job file with the new terms",
            remedy=remedy,
        )
    if {"--deadline", "--deadline-in"} <= set(options):
        raise JobError(
            "both --deadline and --deadline-in", expected="a single deadline option", remedy=remedy
        )


def _terms_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of terms before and after a change, with the time it became known if the rows have it."""
    shown = []
    for row in rows:
        written = utc if row["term"] == "deadline" else auto
        shown.append({**row, "before": written(row["before"]), "after": written(row["after"])})
    known = {"known_at": "known at (UTC)"} if any("known_at" in row for row in rows) else {}
    return Table(title, shown, known | columns_by_key("term", "before", "after"))


def _need_warehouse(name: str, session: Query) -> None:
    """Raise `JobError` if there is no warehouse, so that a command on an existing job does not create one."""
    from slackwater.warehouse.errors import JobError

    if not session.db.exists():
        raise JobError(
            f"no job {name!r}: there is no warehouse at {session.db}",
            remedy="`slackwater job add` creates a warehouse",
        )


def list_(*patterns: Patterns, session: QueryAt = QueryAt()) -> Answer:
    """List the jobs: running jobs by their risk of missing the deadline, then waiting jobs, then ended jobs, newest first."""
    from slackwater.flows.clock import now
    from slackwater.flows.following import present_note, present_of
    from slackwater.flows.jobs.listing import list_jobs
    from slackwater.flows.ledger.fields import zone_of
    from slackwater.flows.ledger.jobs import stored_jobs, unreadable_jobs
    from slackwater.warehouse.errors import JobError

    clock = now()
    with session.reading() as store:
        at = session.time or present_of(store, session.config, clock=clock)
        jobs = stored_jobs(store, known_at=session.time)
        unreadable = unreadable_jobs(store, known_at=session.time)
        listed = list_jobs(store, jobs, at=at, known_at=session.time)
    rows = [job.row() for job in listed]
    known = len(rows)
    rows = [
        row for row in rows if all_fit(patterns, [str(row["job"]), str(row["market"]), str(row["state"])])
    ]
    rows.sort(key=_urgency)
    if patterns and not rows and known:
        raise JobError(
            f"none of {plural(known, 'job')} matches {' '.join(patterns)}",
            expected="part of the name, market or state of a job, or a shell pattern",
            remedy="`slackwater job list` lists them",
        )
    columns = columns_by_key(
        "job", "state", "late_probability", "ending", "market", deadline="deadline (UTC)"
    )
    columns["market"] = Column(heading="where", format=zone_of)
    columns["late_probability"] = Column(
        heading="risk", words="Risk of missing the deadline.", format=lambda value: "" if value is None else percent(value),
    )  # fmt: skip
    title = f"Jobs ({len(rows):,} of {known:,})" if patterns else "Jobs"
    more = " (filter with a pattern: `slackwater job list running`)"
    missed = [
        f"{row['job']}: {row['ending']}"
        for row in rows
        if row["origin"] == "user" and str(row["ending"]).startswith(("missed", "late"))
    ]
    blocks: list[Block] = [
        *([Notes([f"MISSED: {text}" for text in missed])] if missed else []),
        Table(title, rows, columns, most=MOST_LISTED, more=more),
    ]
    if unreadable:
        blocks.append(Notes(unreadable))
    elif not known:
        blocks.append(
            Notes(["`slackwater init --job` writes a job file, and `slackwater job add FILE` adds the job"])
        )
    notes = [] if session.time is not None else [*filter(None, [present_note(at, clock)])]
    return Answer(title="Jobs", value={"jobs": rows, "unreadable": unreadable}, blocks=blocks, notes=notes)


def _urgency(row: Mapping[str, Any]) -> tuple[int, float, float, str]:
    """Return a sort key: running, waiting and set aside jobs by risk, then deadline; then ended jobs, newest first."""
    from slackwater.flows.jobs.listing import OPEN

    place = OPEN.index(row["state"]) if row["state"] in OPEN else len(OPEN)
    seconds = row["deadline"].timestamp()
    return (
        place,
        -(row["late_probability"] or 0.0),
        -seconds if place == len(OPEN) else seconds,
        str(row["job"]),
    )


def show(
    name: Annotated[str, option("Name of the job.", metavar="NAME")], /, *, session: Query = Query()
) -> Answer:
    """Show a job with its decisions, its reports compared with the predictions, and its outcome."""
    import pandas as pd

    from slackwater.flows.clock import now
    from slackwater.flows.delivery import deliveries_of
    from slackwater.flows.following import present_note, present_of
    from slackwater.flows.jobs.change import not_replayed, terms_rows
    from slackwater.flows.jobs.listing import list_jobs
    from slackwater.flows.jobs.predicted import reports_shown
    from slackwater.flows.ledger.decisions import decisions_of, revisions_by_job
    from slackwater.flows.ledger.fields import fold_equal_outcomes, outcome_table
    from slackwater.flows.ledger.headline import headline, unless_over
    from slackwater.flows.ledger.jobs import find_job, terms_of
    from slackwater.flows.ledger.reports import measured_times, reports_by_job
    from slackwater.flows.ledger.rounds import outcomes_of
    from slackwater.optimization.job.times import loss_rows, times_rows
    from slackwater.optimization.job.units import request_words, unit_words

    _need_warehouse(name, session)
    clock = now()
    with session.reading() as store:
        job = find_job(store, name)
        versions = terms_of(store, job)
        decisions = decisions_of(store, name)
        reports = reports_shown(store, job, decisions, session.config)
        revisions = revisions_by_job(store, [name])[name]
        deliveries = [delivery.row() for delivery in deliveries_of(store, name)]
        outcomes = outcomes_of(store, job)
        measured = measured_times(reports_by_job(store, [name])[name])
        present = present_of(store, session.config, clock=clock)
        (listed,) = list_jobs(store, [job], at=present)
    ending = listed.ending
    value = {
        "job": job.request.model_dump(mode="json"),
        **request_words(job.request, job.step / pd.Timedelta(hours=1)),
        "origin": job.origin,
        "ending": None if ending is None else ending.words(),
        "terms": terms_rows(versions),
        "times": times_rows(job.request, measured),
        "loss_now": [] if ending is not None else loss_rows(job.request, measured),
        "decisions": decisions,
        "revisions": revisions,
        "reports": reports,
        "deliveries": deliveries,
        "outcomes": [_outcome(row) for row in outcomes],
    }
    blocks = _job_blocks(
        value,
        job.request.model_dump_json(indent=2, exclude_none=True),
        unit_words(job.request.workload.unit),
        outcome_table(
            "Outcomes, simulated on the recorded market data", fold_equal_outcomes(outcomes), most=10
        ),
    )
    missed = ending is not None and ending.is_missed
    about = f"Job {name} {ending.words()}." if ending is not None and not missed else ""
    if ending is None and decisions:
        about = unless_over(decisions[-1], clock, headline(decisions[-1], clock))
    return Answer(
        title=f"Job {name}",
        value=value,
        about=about,
        banner=Banner("Missed:", f"job {name} {ending.words()}") if ending is not None and missed else None,
        blocks=blocks,
        notes=[*not_replayed(job), *filter(None, [present_note(present, clock)])],
    )


def _outcome(row: Mapping[str, Any]) -> dict[str, Any]:
    moved = MOVED_KEYS if row["places"] is not None else ()
    return {key: row[key] for key in (*OUTCOME_KEYS, *moved)}


def _job_blocks(value: Mapping[str, Any], request: str, unit: str, outcomes: Table) -> list[Block]:
    from slackwater.flows.ledger.throughput import throughput_words
    from slackwater.flows.turn.report.command import decision_blocks

    newest_first = value["decisions"][::-1]
    several = ", newest first" if len(newest_first) > 1 else ""
    blocks: list[Block] = [*decision_blocks(f"Decisions{several}", newest_first)]
    if value["revisions"]:
        blocks.append(
            Table(
                "Decided again within a slot, after spot was lost", value["revisions"][::-1], REVISION_COLUMNS
            )
        )
    if value["reports"]:
        placed = {"market": "in"} if any(row.get("market") for row in value["reports"]) else {}
        measured = [
            f"{time(row['reported_at'])}: {throughput_words(row['throughput'])}"
            for row in value["reports"]
            if "throughput" in row
        ]
        blocks += [
            Table(f"Reports, in {unit}", value["reports"], REPORT_COLUMNS | placed),
            Notes([how_far_off(value["reports"], unit), *measured]),
        ]
    if value["deliveries"]:
        blocks.append(
            Table(
                "Deliveries",
                value["deliveries"],
                columns_by_key("slot", "sink", "status", "attempts", "reason"),
            )
        )
    changed = [
        {"known_at": version["known_at"], **row} for version in value["terms"] for row in version["changes"]
    ]
    if changed:
        blocks.append(_terms_table("Changes of the terms", changed))
    heading = "Request, with changes" if changed else "Request"
    return [
        *blocks,
        Table(
            "Times of the instances",
            value["times"],
            columns_by_key("key", "value", "origin", "source", "provider"),
        ),
        Notes([f"{row['provider']}: {row['told']}" for row in value["loss_now"]]),
        outcomes,
        Section(heading, [f"Sizes: {value['sizes']}. Work: {value['work']}.", request]),
    ]


def how_far_off(reports: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Return a sentence on the difference between reported and predicted progress."""
    compared = [row for row in reports if row["off"] is not None]
    if not compared:
        return "the error of the predicted progress is not known"
    off = sum(row["off"] for row in compared)
    return (
        f"progress was {auto(abs(float(off)))} {unit} {'more' if off >= 0 else 'less'} than predicted from the "
        f"decisions, over {len(compared)} {'report' if len(compared) == 1 else 'reports'}"
    )


@shared
class GivenReport:
    """A report as given: the options of ``job report``, or the JSON object of a request; None: not reported."""

    at: Annotated[
        str | None, option("Time of the reported state, ISO 8601 (default: now).", metavar="TIME")
    ] = None
    progress: Annotated[
        float | None, option("Work done by this time, in the unit of the job's workload.", metavar="X")
    ] = None
    progress_share: Annotated[
        float | None, option("Work done by this time, as a share from 0 to 1.", metavar="SHARE")
    ] = None
    tokens: Annotated[
        float | None, option("Tokens processed by this time, for a job with work in tokens.", metavar="N")
    ] = None
    on_demand: Annotated[int | None, option("On-demand instances running at this time.", metavar="N")] = None
    spot: Annotated[int | None, option("Spot instances running at this time.", metavar="N")] = None
    market: Annotated[
        str | None, option("Market of the instances, for a multi-market job.", metavar="MARKET")
    ] = None
    finished: Annotated[bool, option("The job is finished.")] = False
    withdrawn: Annotated[
        bool, option("You ended the job before its work was done; later turns decide nothing for it.")
    ] = False
    boot_minutes: Annotated[
        float | None, option("Measured minutes from the grant of an instance until it was up.", metavar="X")
    ] = None
    restart_minutes: Annotated[
        float | None,
        option("Measured minutes without work after instances joined, left or were lost.", metavar="X"),
    ] = None
    checkpoint_minutes: Annotated[
        float | None, option("Measured minutes of work between two checkpoints.", metavar="X")
    ] = None
    on_demand_wait_minutes: Annotated[
        float | None, option("Measured minutes until on-demand was granted.", metavar="X")
    ] = None
    granted: Annotated[
        int | None,
        option("Spot instances granted of those requested; 0: the request was refused.", metavar="N"),
    ] = None
    asked: Annotated[
        int | None,
        option("Spot instances requested; 0: none (default: those decided for this slot).", metavar="N"),
    ] = None
    lost: Annotated[int | None, option("Spot instances lost at this time.", metavar="N")] = None
    held_minutes: Annotated[
        float | None, option("Minutes for which the spot instances had run until this time.", metavar="X")
    ] = None
    note: Annotated[str, option("Note to store with the report.", metavar="TEXT")] = ""
    known_at: Annotated[
        str | None,
        option(
            "Time at which the report became known; decisions for earlier slots ignore it (default: the time of --at).",
            metavar="TIME",
        ),
    ] = None


NOTHING_GIVEN = GivenReport()


def report(
    name: Annotated[str, option("Name of the job.", metavar="NAME")],
    /,
    *,
    given: GivenReport = NOTHING_GIVEN,
    session: Query = Query(),
) -> Answer:
    """Report the progress and instances of a job; the next plan starts from them. Reporting a time again corrects it."""
    from slackwater.flows.clock import now
    from slackwater.flows.jobs.reporting import write_report
    from slackwater.flows.ledger.throughput import throughput_words
    from slackwater.optimization.job.units import unit_words

    with session.writing() as store:
        done = write_report(store, session.config, name, given, clock=now())
    kept, value = done.report, done.value
    measured = [throughput_words(value["throughput"])] if "throughput" in value else []
    columns = columns_by_key(
        "job", "reported_at", "progress", "progress_share", "on_demand", "spot", *(["market"] if kept.market else []),
        "finished", *(["withdrawn"] if kept.withdrawn else []), *kept.measured, *kept.launch, "counts_from",
    ) | {"progress": f"progress ({unit_words(done.stored.request.workload.unit)})"}  # fmt: skip
    blocks: list[Block] = [
        Table("Report" if value["added"] else "Report (already stored)", [value], columns),
        Notes([*value["warnings"], *measured]),
    ]
    return Answer(title=f"Report of {name}", value=value, blocks=blocks)
