"""Units of a backtest: forecasts computed or stored as files, scored immediately, and used by plans (M6.1, M6.5)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from slackwater import forecasting
from slackwater.flows.executor import Executor, fan_out
from slackwater.forecasting.accuracy.tables import QUANTILES, Accuracy, Tally, accuracy_of, tally
from slackwater.forecasting.origins import (
    Block,
    Rolling,
    Unit,
    forecast_blocks,
    last_slot,
    series_read_by,
    units_of,
)
from slackwater.forecasting.predictor import Outlook
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series
from slackwater.warehouse.errors import DamagedStoreError, InputError
from slackwater.warehouse.times import microseconds

# ---
# Forecasts of a backtest stored as files, so that an interrupted run can continue (M6.1, M6.5).
#
# There is a Parquet file per unit, named by the fingerprint of everything its forecasts depend on: the model and its settings,
# the program's forecasting code, the data up to the last origin, the fit slot, the origins and the horizon. A file is
# written under another name and renamed, so it is always complete. Rows are vintages: market, issued_at, step, mean,
# q05..q95 and reason. A damaged file, or a file that contains another name, is computed again.

#: Folders of the forecasting package on which no forecast depends.
AFTERWARDS = frozenset({"accuracy", "configurations", "diagnosis"})
_NUMBERS = ("mean", *QUANTILES)
_SCHEMA = pa.schema(
    {"market": pa.string(), "issued_at": pa.timestamp("us", tz="UTC"), "step": pa.int32()}
    | dict.fromkeys(_NUMBERS, pa.float64())
    | {"reason": pa.string()}
)
GROUP_ROWS = 50_000  # Number of rows written and read at once; more if a block is larger
#: Metadata key of the file's own name; under another name the file holds the wrong forecasts.
NAME = b"forecasts"
LIBRARIES = ("numpy", "scipy", "numba", "lightgbm")  # Libraries whose version may change the results


def fingerprint(unit: Unit, rolling: Rolling) -> str:
    """Return a hash for the forecasts of a unit: equal if and only if everything they depend on is equal."""
    seen = series_read_by(unit, rolling)
    hashed = hashlib.blake2b(digest_size=20)
    hashed.update(code_fingerprint().encode())
    predictor, cadence = rolling.predictors[unit.model], rolling.timetable.of(rolling.variable(unit.panel))
    step = microseconds(seen[0].step, "step")
    about = (predictor, cadence, unit.fit_slot, rolling.horizon, step)
    hashed.update(repr(about).encode())
    panel = rolling.panels[unit.panel]
    for which, origins in unit.origins:
        hashed.update(repr((panel.series[which].key, origins.size)).encode())
        hashed.update(origins.astype(np.int64).tobytes())
    last = last_slot(unit, rolling)
    for series in seen:
        _hash_series(hashed, series.until(last))
    return hashed.hexdigest()


def _hash_series(hashed: hashlib.blake2b, series: Series) -> None:
    about = (series.key, series.variable, series.slots_per_day, series.first_slot, series.on_demand_usd)
    hashed.update(repr((about, len(series), series.within.shape)).encode())
    for values in (series.values, series.upper, series.within, series.learned):
        hashed.update(values.astype(float).tobytes())


@cache
def code_fingerprint() -> str:
    """Return a hash of the code behind forecasts: the files of the forecasting package and the versions of its libraries."""
    hashed = hashlib.blake2b(digest_size=20)
    for library in LIBRARIES:
        hashed.update(f"{library} {version(library)}\n".encode())
    root = Path(str(forecasting.__file__)).parent
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in AFTERWARDS:
            hashed.update(str(path.relative_to(root)).encode())
            hashed.update(path.read_bytes())
    return hashed.hexdigest()


def stored_path(folder: Path, unit: Unit, rolling: Rolling) -> Path:
    """Return the path of the stored forecasts of a unit."""
    return folder / unit.model / f"{fingerprint(unit, rolling)}.parquet"


@contextmanager
def writer(path: Path, rolling: Rolling) -> Iterator[Callable[[Block], None]]:
    """Yield a function that stores a block; the file exists only after an end without error. Raises `InputError` if unwritable."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    schema = _SCHEMA.with_metadata({NAME: path.stem.encode()})
    waiting: list[pa.Table] = []
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(part, schema, compression="zstd", write_page_checksum=True) as file:

            def flush(least: int) -> None:
                if (rows := sum(held.num_rows for held in waiting)) >= least:
                    file.write_table(pa.concat_tables(waiting), row_group_size=rows)
                    waiting.clear()

            def write(block: Block) -> None:
                waiting.append(_table(block, rolling).replace_schema_metadata(schema.metadata))
                flush(GROUP_ROWS)

            yield write
            flush(1)
        os.replace(part, path)
    except OSError as error:
        raise InputError(
            f"cannot keep forecasts in {path.parent}: {error.strerror or error}",
            expected="a folder that can be written",
            remedy="choose another --keep",
        ) from error
    finally:
        with suppress(OSError):
            part.unlink()


def _table(block: Block, rolling: Rolling) -> pa.Table:
    series, given = rolling.panels[block.panel].series[block.which], block.outlook
    m, h = given.mean.shape
    issued = (series.first_slot + block.origins) * microseconds(series.step, "step")
    numbers = (given.mean.ravel(), *given.quantiles.reshape(m * h, LEVELS.size).T)
    columns = {
        "market": pa.repeat(series.key, m * h),
        "issued_at": np.repeat(issued, h),
        "step": np.tile(np.arange(1, h + 1, dtype=np.int32), m),
        **dict(zip(_NUMBERS, numbers, strict=True)),
        "reason": pa.array(given.reasons, pa.string()).take(pa.array(np.repeat(np.arange(m), h))),
    }
    return pa.table(columns, schema=_SCHEMA)


def read_blocks(path: Path, unit: Unit, rolling: Rolling) -> Iterator[Block]:
    """Yield the stored blocks of a unit; raises `DamagedStoreError` if the file does not hold these forecasts."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            wanted = sum(origins.size for _, origins in unit.origins) * rolling.horizon
            schema = file.schema_arrow
            named = (schema.metadata or {}).get(NAME) == path.stem.encode()
            if file.metadata.num_rows != wanted or not schema.equals(_SCHEMA) or not named:
                raise DamagedStoreError(f"{path} does not hold the forecasts of its name")
            yield from _blocks(file, unit, rolling)
    except (OSError, pa.ArrowException) as error:
        raise DamagedStoreError(f"{path} cannot be read: {error}") from error


def _blocks(file: pq.ParquetFile, unit: Unit, rolling: Rolling) -> Iterator[Block]:
    groups = iter(range(file.num_row_groups))
    held = file.read_row_group(next(groups)) if file.num_row_groups else None
    for which, origins in unit.origins:
        size = origins.size * rolling.horizon
        while held is None or held.num_rows < size:
            more = file.read_row_group(next(groups))
            held = more if held is None or not held.num_rows else pa.concat_tables([held, more])
        outlook = _outlook(held.slice(0, size), (origins.size, rolling.horizon))
        held = held.slice(size)
        yield Block(model=unit.model, panel=unit.panel, which=which, origins=origins, outlook=outlook)


def _outlook(rows: pa.Table, shape: tuple[int, int]) -> Outlook:
    quantiles = np.column_stack([rows[name].to_numpy() for name in QUANTILES])
    return Outlook(
        quantiles=quantiles.reshape(*shape, LEVELS.size),
        mean=rows["mean"].to_numpy().reshape(shape),
        reasons=tuple(rows["reason"].to_pylist()[:: shape[1]]),
    )


# ---
# Computation of a backtest by units: forecast or read stored forecasts, and score, in several processes or in this process
# (M6.5).

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BacktestPlan:
    """A backtest to run, the model drawn as example (``default``), and the folder of stored forecasts, if any."""

    rolling: Rolling
    default: str
    keep: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitScores:
    """The tallies of a unit, and a note ("" for none)."""

    tallies: tuple[Tally, ...]
    note: str = ""


def score_unit(unit: Unit, course: BacktestPlan) -> UnitScores:
    """Score a unit, with stored forecasts if available; the forecasts of only a single series are in memory at a time."""
    note = ""
    if course.keep is None:
        return UnitScores(tallies=_tallies(forecast_blocks(unit, course.rolling), course))
    path = stored_path(course.keep, unit, course.rolling)
    if path.exists():
        try:
            return UnitScores(tallies=_tallies(read_blocks(path, unit, course.rolling), course))
        except DamagedStoreError:
            note = f"{path.name} in {path.parent} was damaged and is computed again"
    with writer(path, course.rolling) as write:
        return UnitScores(tallies=_tallies(_write_each(unit, course, write), course), note=note)


def _tallies(blocks: Iterable[Block], course: BacktestPlan) -> tuple[Tally, ...]:
    return tuple(tally(block, course.rolling) for block in blocks)


def _write_each(unit: Unit, course: BacktestPlan, write: Callable[[Block], None]) -> Iterator[Block]:
    for block in forecast_blocks(unit, course.rolling):
        write(block)
        yield block


def cores() -> int:
    """Return the number of cores available to this process: the default number of processes."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_course(
    course: BacktestPlan, *, processes: int = 1, progress: Progress | None = None, notes: tuple[str, ...] = ()
) -> Accuracy:
    """Score all units of a backtest in ``processes`` processes; the result does not depend on their number."""
    units = units_of(course.rolling)
    scored = fan_out(score_unit, units, course, processes=processes, progress=progress, executor=Executor())
    return accuracy_from(course, scored, notes=notes)


def accuracy_from(
    course: BacktestPlan, scored: Iterator[UnitScores], *, notes: tuple[str, ...] = ()
) -> Accuracy:
    """Return the tables of the scored units, which must be in the order of `units_of`."""
    lines: list[str] = []

    def tallies() -> Iterator[Tally]:
        for block in scored:
            if block.note:
                lines.append(block.note)
            yield from block.tallies

    result = accuracy_of(course.rolling, tallies(), default=course.default, notes=notes)
    return replace(result, notes=(*result.notes, *lines))
