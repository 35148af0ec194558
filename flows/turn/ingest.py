"""Bring new observations into the warehouse: files of any source, or the simulated market up to the logical time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
import pyarrow as pa

from flows.config import Settings
from flows.turn.context import Turn
from warehouse.errors import InputError, SourceFileError
from warehouse.observations.ingest import Appended, append, ingest_file
from warehouse.observations.listing import observed_span
from warehouse.sources import SOURCES
from warehouse.sources.contract import Batch, Kind, Source, SourceOptions
from warehouse.sources.simulated import generate, said
from warehouse.store.connection import Store

#: Minutes between observations of the simulated market, at most.
SIMULATED_STEP = 10

Counts = dict[str, dict[str, int]]


class Told:
    """A source that tells how many rows it has read so far, file by file; otherwise the one it wraps."""

    def __init__(self, source: Source, rows: Callable[[str, int], None]) -> None:
        self.source = source
        self.rows = rows
        self.name = source.name
        self.options = source.options
        self.examples = source.examples

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """The wrapped source's files."""
        return self.source.files(paths)

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        """The wrapped source's batches, counted as they pass."""
        seen = 0
        for batch in self.source.read(path, options):
            seen += batch.table.num_rows
            self.rows(path.name, seen)
            yield batch

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        """The wrapped source's assumptions."""
        return self.source.assumptions(path, options)


def find_source(name: str) -> Source:
    """The source of that name; raises `InputError` with the known names."""
    if name not in SOURCES:
        raise InputError(
            f"source {name!r}",
            expected=f"one of {', '.join(sorted(SOURCES))}",
            remedy="see `slackwater ingest --list`",
        )
    return SOURCES[name]


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
    """Ingest every file of a source below ``paths``; one transaction per file, counts summed.

    ``progress`` is told each file's name, ``rows`` the rows read of it so far. A file that is not of the source's format
    stops none of the others; it is refused after them, with `SourceFileError`.
    """
    source = Told(find_source(name), rows)
    total = Appended(added=0, repeated=0, rejected=0)
    refused: list[SourceFileError] = []
    files = source.files(paths)
    for path in files:
        progress(path.name)
        try:
            done = ingest_file(
                store,
                source,
                path,
                options=SourceOptions(values=dict(options)),
                known_at=known_at,
                imported_at=imported_at,
            )
        except SourceFileError as error:
            refused.append(error)
            continue
        total = Appended(
            added=total.added + done.added,
            repeated=total.repeated + done.repeated,
            rejected=total.rejected + done.rejected,
        )
    if len(files) == 1 and refused:
        raise refused[0]
    if refused:
        raise InputError(
            f"{len(refused)} of {len(files)} files refused, the first: {refused[0]}",
            remedy=f"the others are in: {total.added} rows added, {total.repeated} repeated, {total.rejected} rejected",
        )
    return {name: {"added": total.added, "repeated": total.repeated, "rejected": total.rejected}}


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
