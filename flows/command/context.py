"""What the commands do: open the warehouse, call the stages, print. Only ``run`` starts the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from flows.clock import now, parse_time
from flows.command.answer import print_json, print_table, row_progress, say_to_stderr
from flows.config import Settings, read_settings
from flows.show.table import rows_of
from flows.turn.context import Turn, run_id_of
from warehouse.errors import InputError, MarketError
from warehouse.observations.listing import list_markets
from warehouse.reader import open_reader
from warehouse.store.connection import Store, open_store

DECISION_COLUMNS = {
    "job": "job", "market": "market", "slot": "slot (UTC)", "on_demand": "on-demand", "spot": "spot",
    "expected_cost_usd": "expected cost $", "expected_finish": "expected finish", "deadline": "deadline",
    "late_probability": "P(late)", "policy": "policy", "reason": "why",
}  # fmt: skip
BOARD_COLUMNS = {
    "policy": "policy", "jobs": "jobs", "mean_utility": "utility (OD-only cost = 1)", "mean_cost_usd": "cost $",
    "on_time": "on time", "gap_to_hindsight": "gap to hindsight", "weight": "weight",
}  # fmt: skip
BASELINES = ("OD-only", "MSU", "UP")
BOARD_ROWS = 10


@contextmanager
def warehouse_for(
    db: Path, data: Path | None, *, say: Callable[[str], None], write: bool = False
) -> Iterator[Store]:
    """The warehouse at ``db``, to read unless ``write``; with ``data`` one of its own that holds that folder and is thrown away."""
    if data is None:
        with open_store(db, say=say) if write else open_reader(db) as store:
            yield store
        return
    from flows.turn.ingest import ingest_paths

    with (
        TemporaryDirectory(prefix="slackwater-") as folder,
        open_store(Path(folder) / "data.duckdb") as store,
    ):
        say(f"read {data}")
        ingest_paths(store, "tabular", [data], options={}, known_at=None, imported_at=EPOCH)
        yield store


#: Logical time of imports whose time does not matter: a warehouse that is thrown away.
EPOCH = pd.Timestamp(0, tz="UTC")


def logical_time(store: Store, at: str | None) -> tuple[pd.Timestamp, bool]:
    """The time of a command and whether every market is taken at its own end: ``--at``, else the end of the record.

    Raises `MarketError` on a warehouse without observations.
    """
    if at is not None:
        return parse_time(at, "--at"), False
    listing = list_markets(store)
    if listing.empty:
        raise MarketError(
            "the warehouse has no observations", remedy="`slackwater run` or `slackwater ingest` brings some"
        )
    return pd.Timestamp(listing["last_observed"].max()), True


def run_command(
    *,
    data: Path | None,
    db: Path,
    at: str | None,
    job_files: Sequence[Path],
    report: Path | None,
    settings: Path | None,
    as_json: bool,
) -> None:
    """``slackwater run``: one turn of the loop on the engine."""
    from flows.jobs.file import read_request

    chosen = read_settings(settings)
    requests = [read_request(file) for file in job_files]
    when, own_end = _run_time(data, db, at, chosen)
    placed = [_placed_alone(request, when).model_dump(mode="json") for request in requests]
    target = report or Path("reports") / f"{run_id_of(when)}.html"
    say_to_stderr(f"start the engine; turn at {when:%Y-%m-%d %H:%M} UTC on {_market_words(data, chosen)}")
    from flows.engine.prepare import prepare_engine

    prepare_engine(db.resolve().parent, quiet=True)
    from flows.engine.flows import pipeline

    answer = pipeline.with_options(timeout_seconds=0)(  # who waits for it may stop it
        db=db,
        at=when.to_pydatetime(),
        data=data,
        jobs=placed,
        report=target,
        settings=settings,
        own_end=own_end,
    )
    if as_json:
        print_json(answer)
    else:
        print_turn(answer)


def _market_words(data: Path | None, settings: Settings) -> str:
    """What a run is on, for the person who waits."""
    if data is not None:
        return str(data)
    return f"{len(settings.feeds)} live feeds" if settings.feeds else "the SIMULATED market"


def _run_time(data: Path | None, db: Path, at: str | None, settings: Settings) -> tuple[pd.Timestamp, bool]:
    """Logical time of a run, floored to the grid: ``--at``, else the end of the folder's record, else the clock."""
    step = pd.Timedelta(minutes=settings.step_minutes)
    if at is not None:
        return parse_time(at, "--at").floor(step), False
    if data is None:
        return now().floor(step), False
    from flows.turn.ingest import last_observed

    return last_observed(data).ceil(step), True


def _placed_alone(request: Any, at: pd.Timestamp) -> Any:
    """A job file given to a run must name its market; its relative times count from the run's."""
    from warehouse.errors import JobError

    if request.market is None:
        raise JobError(
            f"job {request.name!r} names no market",
            remedy='add market = "..." or use `slackwater job add --market`',
        )
    return request.placed(at=at, market=request.market, source=request.source)


def print_turn(answer: Mapping[str, Any]) -> None:
    """The tables of a turn."""
    print_table(f"Decisions at {answer['at']}", answer["decisions"], DECISION_COLUMNS)
    print_table(
        "Forecast error, pooled over markets (skill: share of last value's pinball loss saved)",
        pooled_accuracy(answer["accuracy"]),
        {"variable": "variable", "model": "model", "step": "slots ahead", "mae": "MAE", "mae_last": "MAE of last value",
         "skill_mae": "MAE skill", "skill_pinball": "pinball skill"},
    )  # fmt: skip
    print_board(answer["leaderboard"])
    for note in answer["notes"]:
        print(f"* {note}")
    for source, counts in answer["ingested"].items():
        print(
            f"ingested from {source}: {counts['added']} added, {counts['repeated']} repeated, {counts['rejected']} rejected"
        )
    print(f"report: {answer['report']}")


def print_board(board: Sequence[Mapping[str, Any]]) -> None:
    """The best of the leaderboard and every baseline."""
    shown = [row for i, row in enumerate(board) if i < BOARD_ROWS or row["policy"] in BASELINES]
    print_table(
        f"Policies over ended jobs (best {BOARD_ROWS} and baselines of {len(board)})", shown, BOARD_COLUMNS
    )


def pooled_accuracy(
    rows: Sequence[Mapping[str, Any]], steps: Sequence[int] = (1, 4, 12)
) -> list[dict[str, Any]]:
    """Errors per variable, model and step, averaged over markets, beside last value's."""
    if not rows:
        return []
    frame = pd.DataFrame(rows)
    frame = frame[frame["step"].isin(list(steps))]
    pooled = rows_of(
        frame.groupby(["variable", "step", "model"], sort=True)[["mae", "pinball"]].mean().reset_index()
    )
    last = {(row["variable"], row["step"]): row for row in pooled if row["model"] == "last_value"}
    unknown = {"mae": float("nan"), "pinball": float("nan")}
    out = []
    for row in pooled:
        base = last.get((row["variable"], row["step"]), unknown)
        skill = {loss: 1 - row[loss] / base[loss] if base[loss] > 0 else float("nan") for loss in unknown}
        out.append(
            row | {"mae_last": base["mae"], "skill_mae": skill["mae"], "skill_pinball": skill["pinball"]}
        )
    return out


def ingest_command(
    source: str,
    paths: Sequence[Path],
    *,
    db: Path,
    options: Sequence[str],
    known_at: str | None,
    at: str | None,
    as_json: bool,
) -> None:
    """``slackwater ingest``: read files into the warehouse."""
    from flows.turn.ingest import find_source, ingest_paths

    if not source:
        raise InputError(
            "no source given",
            expected="SOURCE PATH...",
            remedy="`slackwater ingest --list` lists the sources",
        )
    find_source(source)
    values = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise InputError(f"--set {option!r}", expected="NAME=VALUE")
        values[name] = value
    for path in paths:
        if not path.exists():
            raise InputError(f"no file or folder {path}", remedy="check the path")
    with open_store(db) as store, row_progress() as tell:
        counts = ingest_paths(
            store,
            source,
            paths,
            options=values,
            known_at=parse_time(known_at, "--known-at") if known_at else None,
            imported_at=parse_time(at, "--at") if at else now(),
            rows=tell,
        )
    if as_json:
        print_json(counts)
        return
    rows = [{"source": name, **row} for name, row in counts.items()]
    print_table(
        "Ingested",
        rows,
        {"source": "source", "added": "added", "repeated": "repeated", "rejected": "rejected"},
    )


def sources_command(*, as_json: bool) -> None:
    """``slackwater ingest --list``: the sources of files and the live ones, with their options."""
    from warehouse.sources import SOURCES
    from warehouse.sources.live import LIVE_SOURCES

    files = [_source_row(name, source.options) for name, source in SOURCES.items()]
    live = [_source_row(name, source.options) for name, source in LIVE_SOURCES.items()]
    if as_json:
        print_json({"sources": files, "live": live})
        return
    print_table("Sources", files, {"source": "source", "options": "options (--set NAME=VALUE)"})
    print_table(
        "Live sources, for [[feeds]] in slackwater.toml", live, {"source": "source", "options": "options"}
    )


def _source_row(name: str, options: Mapping[str, str]) -> dict[str, Any]:
    return {"source": name, "options": [f"{key}: {text}" for key, text in options.items()]}


def markets_command(*, db: Path, data: Path | None, at: str | None, as_json: bool) -> None:
    """``slackwater markets``: what the warehouse knows."""
    with warehouse_for(db, data, say=say_to_stderr) as store:
        listing = list_markets(store, known_at=parse_time(at, "--at") if at else None)
    rows = rows_of(listing)
    if as_json:
        print_json({"markets": rows})
        return
    print_table(
        "Markets",
        rows,
        {"market": "market", "source": "source", "kind": "kind", "count_rows": "counts", "price_rows": "prices",
         "capacity": "capacity", "on_demand_usd": "on-demand $", "gap_seconds": "gap s", "first_observed": "first (UTC)",
         "last_observed": "last (UTC)", "missing": "missing"},
    )  # fmt: skip


def leaderboard_command(*, db: Path, settings: Path | None, as_json: bool) -> None:
    """``slackwater leaderboard``: every policy's record."""
    from flows.turn.whole import leaderboard_rows

    with open_reader(db) as store:
        turn = Turn(store=store, at=EPOCH, settings=read_settings(settings), run_id="leaderboard")
        board = leaderboard_rows(turn)
    if as_json:
        print_json({"leaderboard": board})
    else:
        print_board(board)


def report_command(
    *, db: Path, at: str | None, out: Path | None, settings: Path | None, as_json: bool
) -> None:
    """``slackwater report``: write the page of a run again from the warehouse."""
    from flows.turn.whole import stored_report

    chosen = read_settings(settings)
    with warehouse_for(db, None, say=say_to_stderr) as store:
        path = stored_report(store, chosen, at=parse_time(at, "--at") if at else None, path=out)
    if as_json:
        print_json({"report": str(path)})
    else:
        print(f"report: {path}")
