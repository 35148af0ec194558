"""Ingest of a turn: the files of a folder, the live feeds that are due, or the simulated market up to the turn's time (M1.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pandas as pd
import pyarrow as pa

from slackwater.flows.config import Settings
from slackwater.flows.feeds.fetch import collected_due, store_collected
from slackwater.flows.ledger.stages import LIVE
from slackwater.flows.show.formats import first_of
from slackwater.flows.turn.context import Counts, Turn, TurnValues
from slackwater.flows.turn.results import Results, write
from slackwater.warehouse.errors import InputError
from slackwater.warehouse.listing import observed_sources, observed_span
from slackwater.warehouse.observations import Appended, append, find_source
from slackwater.warehouse.observations import ingest as read_files
from slackwater.warehouse.sources.contract import Batch, Kind, SourceOptions
from slackwater.warehouse.sources.simulated import generate, simulation_note
from slackwater.warehouse.store.connection import Store

MOST_REASONS = 3  # Number of reasons for rejected rows that are printed, the most frequent first
SIMULATED_STEP = 10  # Most minutes between observations of the simulated market


def counts_of(name: str, done: Appended) -> Counts:
    """Return the rows of a source counted by result."""
    return {name: {"added": done.added, "repeated": done.repeated, "rejected": done.rejected}}


def say_rejected(say: Callable[[str], None], name: str, done: Appended) -> None:
    """Print how many values were set aside and rows rejected, with the most frequent reasons; nothing if none was."""
    for reason, count in done.set_aside.items():
        say(f"{count:,} values of {name} set aside: {reason}; their rows stay stored")
    if done.rejected:
        reasons = (f"{count:,} {reason}" for reason, count in done.reasons.items())
        why = "; ".join(first_of(reasons, MOST_REASONS, "{} more reasons"))
        say(f"{done.rejected:,} rows of {name} rejected: {why} (`slackwater rejected`)")


def last_observed(folder: Path) -> pd.Timestamp:
    """Return the latest time in a folder's tidy tables, the default time of its runs; `InputError` without tables."""
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


def _ingest_simulated(store: Store, turn: TurnValues) -> Counts:
    """Ingest the simulated market up to the turn's time: ``simulated_days`` at first, later the time since its last row."""
    settings = turn.settings
    label = simulated_label(settings)
    first, last = observed_span(store, label)
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
        store,
        _joined_batches(batches),
        source="simulated",
        assumptions=simulation_note(settings.seed),
        imported_at=turn.at,
    )
    return counts_of("simulated", done)


def simulates(store: Store, settings: Settings) -> bool:
    """Return whether a turn without folder and feeds simulates its market: never next to observations of another source."""
    return set(observed_sources(store)) <= {simulated_label(settings)}


def simulated_label(settings: Settings) -> str:
    """Return the source label of the simulated market."""
    return f"simulated:{settings.seed}"


def _joined_batches(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Yield a single batch per kind: every batch is staged by separate statements, and each market has two."""
    tables: dict[Kind, list[pa.Table]] = {}
    for batch in batches:
        tables.setdefault(batch.kind, []).append(batch.table)
    for kind, tables_of_kind in tables.items():
        yield Batch(kind=kind, table=pa.concat_tables(tables_of_kind, promote_options="permissive"))


def ingest_observations(turn: Turn, data: Path | None) -> Counts:
    """Ingest the tidy tables of a folder, the live feeds that are due, or else the simulated market; returns row counts.

    A market is never simulated next to observations of another source: then the turn uses the data
    in the warehouse. All rows are stored in a single transaction: pages of feeds are staged before.
    """
    store, settings, counts = turn.store, turn.settings, Counts()
    due = settings.feeds if data is None and turn.made == LIVE else ()
    fetching = collected_due(
        store, due, at=turn.at, seed=settings.seed, say=turn.say, clock=turn.clock, bounds=settings.bounds
    )
    with fetching as collected, store.transaction():
        counts = store_collected(store, collected, say=turn.say)
        if data is not None:
            bounds = settings.bounds.at(turn.clock)
            done = read_files(store, "tabular", data, imported_at=turn.at, bounds=bounds, progress=turn.say)
            counts = counts_of("tabular", done)
            say_rejected(turn.say, "tabular", done)
        elif not settings.feeds and simulates(store, settings):
            turn.say("the market is SIMULATED")
            counts = _ingest_simulated(store, turn)
        elif not settings.feeds:
            turn.say("no feeds: on the markets that the warehouse knows")
        write(store, Results(runs=(turn.done("ingest", counts),)))
    return counts
