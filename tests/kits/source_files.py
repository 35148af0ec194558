"""Shared parts of the tests of sources: the real files, their tidy tables, and a reader that counts."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from open_data import DATA

from slackwater.warehouse.sources.contract import SourceOptions

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("price", "availability", "rejected")


def raw(name):
    """Return a real file in its original format, or skip the test."""
    path = DATA / "raw" / name
    if not path.exists():
        pytest.skip(f"no {name} below {DATA}: set SLACKWATER_DATA to the folder of the open data")
    return path


def options(**values):
    return SourceOptions(values=values)


def batches(source, path, /, **values):
    return list(source.read(Path(path), options(**values)))


def read(source, path, /, **values):
    """Return all rows of a file, one frame per kind, in file order; observed_at and known_at as UTC timestamps."""
    found = batches(source, path, **values)
    frames = {}
    for kind in KINDS:
        tables = [b.table for b in found if b.kind == kind]
        frames[kind] = (
            pd.concat([t.to_pandas() for t in tables], ignore_index=True) if tables else pd.DataFrame()
        )
    for kind in ("price", "availability"):
        for column in ("observed_at", "known_at"):
            if column in frames[kind]:
                frames[kind][column] = pd.to_datetime(frames[kind][column], utc=True, format="ISO8601")
    return frames


def tidy(table, **where):
    """Return rows of the tidy table of the open data, filtered by equality, sorted by time."""
    path = DATA / f"{table}.parquet"
    if not path.exists():
        pytest.skip(f"no {table}.parquet below {DATA}: set SLACKWATER_DATA to the folder of the open data")
    filters = [(column, "=", value) for column, value in where.items()]
    frame = pq.read_table(path, filters=filters).to_pandas()
    frame["timestamp"] = pd.to_datetime(frame["timestamp"], utc=True)
    return frame.sort_values("timestamp", kind="stable").reset_index(drop=True)


def count(found, kind):
    return sum(b.table.num_rows for b in found if b.kind == kind)


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def write_parquet(path, columns):
    pq.write_table(pa.table(columns), path)
    return path
