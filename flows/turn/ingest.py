"""Bring new observations into the warehouse: files of any source, or the simulated market up to the logical time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from flows.config import Settings
from flows.turn.context import Turn
from warehouse.errors import InputError
from warehouse.observations import append, find_source, ingest, observed_span
from warehouse.sources.contract import Batch, Kind, SourceOptions
from warehouse.sources.simulated import generate, said
from warehouse.store.connection import Store

#: Minutes between observations of the simulated market, at most.
SIMULATED_STEP = 10

Counts = dict[str, dict[str, int]]


def ingest_paths(
    store: Store,
    name: str,
    paths: Sequence[Path],
    *,
    options: Mapping[str, str],
    known_at: pd.Timestamp | None,
    imported_at: pd.Timestamp,
    progress: Callable[[str], None] = lambda _: None,
    rows: Callable[[str, int], None] = lambda _file, _rows: None,
) -> Counts:
    """`warehouse.ingest` of every file of a source below ``paths``, counted by source."""
    done = ingest(
        store,
        name,
        *paths,
        known_at=known_at,
        imported_at=imported_at,
        progress=progress,
        rows=rows,
        **options,
    )
    return {name: {"added": done.added, "repeated": done.repeated, "rejected": done.rejected}}


def last_observed(folder: Path) -> pd.Timestamp:
    """The latest time in a folder's tidy tables, so that a run without a time can be put after all of it.

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
    """Minutes between simulated observations: a divisor of the day (the market asks for one), and at least one in every slot."""
    return max(
        minutes for minutes in range(1, min(SIMULATED_STEP, slot_minutes) + 1) if 24 * 60 % minutes == 0
    )


def ingest_simulated(turn: Turn) -> Counts:
    """Bring the simulated market up to the turn's time: ``simulated_days`` of it at first, then what is new since its last row."""
    settings = turn.settings
    label = simulated_label(settings)
    first, last = observed_span(turn.store, label)
    if (
        last == turn.at
    ):  # the turn was stopped after it had ingested: nothing is new, so nothing is imported again
        return {"simulated": {"added": 0, "repeated": 0, "rejected": 0}}
    oldest = turn.at - pd.Timedelta(days=settings.simulated_days)
    # A turn made afterwards for a time before the first one has a past of its own.
    start = oldest if first is None or last is None or oldest < first else min(last, turn.at)
    batches = generate(
        start.to_pydatetime(),
        turn.at.to_pydatetime(),
        seed=settings.seed,
        step_minutes=_simulated_step(settings.step_minutes),
        label=label,
    )
    done = append(
        turn.store, _joined(batches), source="simulated", assumptions=said(settings.seed), imported_at=turn.at
    )
    return {"simulated": {"added": done.added, "repeated": done.repeated, "rejected": done.rejected}}


def simulated_label(settings: Settings) -> str:
    """The source label of the simulated market."""
    return f"simulated:{settings.seed}"


def _joined(batches: Iterable[Batch]) -> Iterator[Batch]:
    """One batch of each kind: every batch is staged by statements of its own, and there are two a market."""
    tables: dict[Kind, list[pa.Table]] = {}
    for batch in batches:
        tables.setdefault(batch.kind, []).append(batch.table)
    for kind, own in tables.items():
        yield Batch(kind=kind, table=pa.concat_tables(own, promote_options="permissive"))
