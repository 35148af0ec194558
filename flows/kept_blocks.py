"""Forecasts of a backtest's units kept as files, so that a run that was stopped goes on where it was (M6.1, M6.5).

One Parquet file a unit, named by the fingerprint of everything its forecasts depend on: the model and its settings,
the program's forecasting code, the data up to the last origin, the fit slot, the origins and the horizon. A file is
written under another name and renamed, so it is there whole or not at all. Rows are vintages: market, issued_at,
step, mean, q05..q95, reason and the whole distribution of a count where the model has one. A damaged file is made
again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import forecasting
from forecasting.accuracy import QUANTILES
from forecasting.forecast import LEVELS
from forecasting.rolling import Block, Rolling, Unit, last_slot, seen_by
from forecasting.series import Series
from forecasting.univariate import Outlook
from warehouse.errors import InputError
from warehouse.times import microseconds

#: Modules of the forecasting layer that no forecast depends on.
AFTERWARDS = frozenset(
    {
        "accuracy",
        "alternation",
        "answers",
        "drift",
        "drift_marks",
        "issued",
        "measures",
        "pooling",
        "predictability",
        "score_tables",
        "scoring",
        "tallies",
    }
)
#: Libraries whose version may change a number.
LIBRARIES = ("numpy", "scipy", "statsmodels", "lightgbm")


def fingerprint(unit: Unit, rolling: Rolling) -> str:
    """A name for the forecasts of a unit: equal if and only if everything they depend on is equal."""
    panel, places = seen_by(unit, rolling)
    hashed = hashlib.blake2b(digest_size=20)
    hashed.update(code_fingerprint().encode())
    model = rolling.models[unit.model][rolling.variable(unit.panel)]
    step = microseconds(panel.series[0].step, "step")
    hashed.update(repr((unit.model, model, unit.fit_slot, rolling.horizon, places, step)).encode())
    for _, origins in unit.origins:
        hashed.update(repr(origins.size).encode())
        hashed.update(origins.astype(np.int64).tobytes())
    last = last_slot(unit, rolling)
    for series in panel.series:
        _hash_series(hashed, series.until(last))
    return hashed.hexdigest()


def _hash_series(hashed: hashlib.blake2b, series: Series) -> None:
    about = (series.key, series.variable, series.slots_per_day, series.first_slot, series.on_demand_usd)
    hashed.update(repr((about, len(series), series.within.shape)).encode())
    for values in (series.values, series.companion, series.upper, series.within):
        hashed.update(values.astype(float).tobytes())


@cache
def code_fingerprint() -> str:
    """A name for the code that makes forecasts: the forecasting layer's files and the versions of its libraries."""
    hashed = hashlib.blake2b(digest_size=20)
    for library in LIBRARIES:
        hashed.update(f"{library} {version(library)}\n".encode())
    root = Path(str(forecasting.__file__)).parent
    for path in sorted(root.rglob("*.py")):
        if path.stem not in AFTERWARDS:
            hashed.update(str(path.relative_to(root)).encode())
            hashed.update(path.read_bytes())
    return hashed.hexdigest()


def kept_path(folder: Path, unit: Unit, rolling: Rolling) -> Path:
    """Where the forecasts of a unit are kept."""
    return folder / unit.model / f"{fingerprint(unit, rolling)}.parquet"


def write_blocks(path: Path, blocks: Sequence[Block], rolling: Rolling) -> None:
    """Keep the blocks of a unit; raises `InputError` if the folder cannot be written."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pa.concat_tables([_table(block, rolling) for block in blocks])
        pq.write_table(table, part, compression="zstd", write_page_checksum=True)
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise InputError(
            f"cannot keep forecasts in {path.parent}: {error.strerror or error}",
            expected="a folder that can be written",
            remedy="choose another --keep",
        ) from error


def _table(block: Block, rolling: Rolling) -> pa.Table:
    series, given = rolling.panels[block.panel].series[block.which], block.outlook
    m, h = given.mean.shape
    issued = (series.first_slot + block.origins) * microseconds(series.step, "step")
    columns: dict[str, pa.Array] = {
        "market": _repeated([series.key], np.zeros(m * h, dtype=np.int32)),
        "issued_at": pa.array(np.repeat(issued, h)).cast(pa.timestamp("us", tz="UTC")),
        "step": pa.array(np.tile(np.arange(1, h + 1, dtype=np.int32), m)),
        "mean": pa.array(given.mean.ravel()),
    }
    flat = given.quantiles.reshape(m * h, LEVELS.size)
    columns |= {name: pa.array(np.ascontiguousarray(flat[:, i])) for i, name in enumerate(QUANTILES)}
    words = sorted(set(given.reasons))
    places = {word: i for i, word in enumerate(words)}
    codes = np.repeat(np.array([places[word] for word in given.reasons], dtype=np.int32), h)
    columns["reason"] = _repeated(words, codes)
    states = 0 if given.law is None else given.law.shape[-1]
    chances = np.zeros(0) if given.law is None else given.law.ravel()
    offsets = pa.array(np.arange(m * h + 1, dtype=np.int32) * states)
    columns["law"] = pa.ListArray.from_arrays(offsets, pa.array(chances, pa.float64()))
    return pa.table(columns)


def _repeated(words: Sequence[str], codes: np.ndarray) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(list(words), pa.string())).cast(
        pa.string()
    )


def read_blocks(path: Path, unit: Unit, rolling: Rolling) -> list[Block] | None:
    """The blocks of a unit as they were kept; None if the file is damaged or does not hold them."""
    try:
        table = pq.read_table(path, page_checksum_verification=True)
    except (OSError, pa.ArrowException):
        return None
    wanted = sum(origins.size for _, origins in unit.origins) * rolling.horizon
    if table.num_rows != wanted or not {"market", "issued_at", "mean", *QUANTILES, "reason", "law"} <= set(
        table.column_names
    ):
        return None
    return list(_blocks(table, unit, rolling))


def _blocks(table: pa.Table, unit: Unit, rolling: Rolling) -> Iterator[Block]:
    first = 0
    for which, origins in unit.origins:
        shape = (origins.size, rolling.horizon)
        rows = table.slice(first, shape[0] * shape[1])
        first += shape[0] * shape[1]
        quantiles = np.column_stack([rows[name].to_numpy() for name in QUANTILES])
        law = rows["law"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        yield Block(
            model=unit.model,
            panel=unit.panel,
            which=which,
            fit_slot=unit.fit_slot,
            origins=origins,
            outlook=Outlook(
                quantiles=quantiles.reshape(*shape, LEVELS.size),
                mean=rows["mean"].to_numpy().reshape(shape),
                reasons=tuple(rows["reason"].to_pylist()[:: rolling.horizon]),
                law=law.reshape(*shape, -1) if law.size else None,
            ),
        )
