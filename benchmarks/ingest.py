"""Time and memory of the ingest of a large table, compared with a plain DuckDB copy into a sorted table.

``python -m benchmarks.ingest [ROWS] [.csv]``; each measurement runs in a separate process. Compare ratios of CPU time: wall time
depends on other work on the machine.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import MEMORY_LIMIT, attach_new, open_store
from slackwater.warehouse.store.schema import sql_literal

SERIES = 2000
CHUNK = 1 << 17
NAMES = "source, provider, region, zone, instance_type, product"
_START_US = pd.Timestamp("2023-01-01", tz="UTC").value // 1000


def make_file(path: Path, rows: int, *, seed: int = 7) -> None:
    """Write a tidy table of ``rows`` prices of up to 2,000 series in random time order, without repeats."""
    rng = np.random.default_rng(seed)
    writer: Any = None
    for first in range(0, rows, CHUNK):
        number = rng.permutation(np.arange(first, min(rows, first + CHUNK)))
        series = number % SERIES
        observed = _START_US + 60_000_000 * (number // SERIES) + series
        region = np.char.add("us-test-", (series % 4).astype(str))
        table = pa.table(
            {
                "source": pa.array(np.full(len(number), "benchmark")),
                "provider": pa.array(np.full(len(number), "aws")),
                "region": pa.array(region),
                "zone": pa.array(np.char.add(region, np.array(["a", "b", "c"])[series % 3])),
                "instance_type": pa.array(np.char.add("type-", (series // 12).astype(str))),
                "product": pa.array(np.char.add("product-", series.astype(str))),
                "timestamp": pa.array(observed, pa.timestamp("us", "UTC")),
                "spot_price_usd_per_hour": pa.array(np.round(rng.uniform(0.5, 3.0, len(number)), 4)),
                "on_demand_price_usd_per_hour": pa.array(np.full(len(number), 3.06)),
            }
        )
        if path.suffix == ".csv":
            at = table.column_names.index("timestamp")
            table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.string()))
            writer = writer or pc.CSVWriter(path, table.schema)
        else:
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    writer.close()


def ours(path: Path, database: Path) -> dict[str, Any]:
    """Ingest as `slackwater ingest tabular` does: check, count, write and close."""
    with open_store(database) as store:
        done = ingest(store, "tabular", path)
        (kept,) = store.execute("SELECT count(*) FROM price")[0]
    return {"added": done.added, "repeated": done.repeated, "rejected": done.rejected, "rows_kept": kept}


def _duckdb(database: Path, *statements: str) -> dict[str, Any]:
    with duckdb.connect(":memory:") as connection:
        connection.execute(attach_new(database, "made"))
    with duckdb.connect(str(database)) as connection:
        connection.execute(f"SET memory_limit = '{MEMORY_LIMIT}'; SET enable_progress_bar = false")
        for statement in statements:
            connection.execute(statement)
        connection.execute("CHECKPOINT")
        ((rows,),) = connection.execute("SELECT count(*) FROM price").fetchall()
    return {"rows_kept": rows}


def _scan(path: Path) -> str:
    return f"{'read_parquet' if path.suffix == '.parquet' else 'read_csv'}({sql_literal(path)})"


def whole(path: Path, database: Path) -> dict[str, Any]:
    """Copy with DuckDB alone: all columns unchanged, sorted by series and time."""
    return _duckdb(database, f"CREATE TABLE price AS SELECT * FROM {_scan(path)} ORDER BY {NAMES}, timestamp")


def narrow(path: Path, database: Path) -> dict[str, Any]:
    """Copy with DuckDB alone, unchecked: a table of series, and sorted rows with series numbers instead of names."""
    return _duckdb(
        database,
        f"CREATE TABLE series AS SELECT row_number() OVER () AS sid, * FROM (SELECT DISTINCT {NAMES} FROM {_scan(path)})",
        "CREATE TABLE price AS SELECT sid, timestamp AS observed_at, timestamp AS known_at, spot_price_usd_per_hour AS price_usd, "
        f"on_demand_price_usd_per_hour AS on_demand_usd, 1 AS batch FROM {_scan(path)} JOIN series USING ({NAMES}) "
        "ORDER BY sid, observed_at, known_at",
    )


def measure(work: Callable[[Path, Path], dict[str, Any]], path: Path, database: Path, answer: Any) -> None:
    """Run ``work`` in this process and send the figures to ``answer``, including the peak memory of the process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, cpu = time.perf_counter(), time.process_time()
    done = work(path, database)
    answer.send(
        done
        | {
            "seconds": round(time.perf_counter() - started, 2),
            "cpu_seconds": round(time.process_time() - cpu, 2),
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "before_mib": before // 1024,
            "store_mib": round(database.stat().st_size / 2**20, 1),
        }
    )


def _alone(work: Callable[[Path, Path], dict[str, Any]], path: Path, database: Path) -> dict[str, Any]:
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    child = spawn.Process(target=measure, args=(work, path, database, sender))
    child.start()
    sender.close()
    figures: dict[str, Any] = receiver.recv()
    child.join()
    return figures


def run(rows: int = 1_000_000, *, suffix: str = ".parquet", folder: Path | None = None) -> dict[str, Any]:
    """Write a file of ``rows`` rows, copy it with DuckDB alone, and ingest it twice, the second time renamed (all rows repeat)."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / f"prices{suffix}"
        make_file(path, rows)
        figures: dict[str, Any] = {
            "rows": rows,
            "format": suffix[1:],
            "file_mib": round(path.stat().st_size / 2**20, 1),
            "duckdb_narrow": _alone(narrow, path, Path(scratch) / "narrow.duckdb"),
            "duckdb_whole": _alone(whole, path, Path(scratch) / "whole.duckdb"),
        }
        for turn in ("first", "again"):
            figures[turn] = _alone(ours, path, Path(scratch) / "store.duckdb")
            path = path.rename(path.with_stem("renamed"))
        for name in ("narrow", "whole"):
            alone = figures[f"duckdb_{name}"]["cpu_seconds"]
            figures[f"first_to_{name}"] = round(figures["first"]["cpu_seconds"] / alone, 2)
        return figures


if __name__ == "__main__":
    arguments = sys.argv[1:]
    size = int(arguments[0]) if arguments else 1_000_000
    print(json.dumps(run(size, suffix=arguments[1] if len(arguments) > 1 else ".parquet"), indent=2))
