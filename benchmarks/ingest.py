"""How fast and in how much memory the store takes a large file, by itself in a process of its own."""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from warehouse.observations import ingest_file
from warehouse.sources.contract import Batch, SourceOptions
from warehouse.store.connection import open_store

SERIES = 2000
CHUNK = 1 << 17
_START_US = pd.Timestamp("2023-01-01", tz="UTC").value // 1000


class TidyFiles:
    """Price rows with the columns of a price batch, from Parquet or CSV (there all text), in chunks."""

    name = "tidy-files"
    has_files = True
    examples: ClassVar[dict[str, str]] = {}
    options: ClassVar[dict[str, str]] = {}

    def files(self, paths):
        return sorted(paths)

    def assumptions(self, path, options):
        return ()

    def read(self, path, options):
        line = 1
        for chunk in self._chunks(path):
            table = pa.Table.from_batches([chunk])
            table = table.append_column("line", pa.array(np.arange(line, line + len(table))))
            line += len(table)
            yield Batch(kind="price", table=table)

    def _chunks(self, path):
        if path.suffix == ".parquet":
            return pq.ParquetFile(path).iter_batches(CHUNK)
        names = pc.open_csv(path).schema.names
        text = pc.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
        return pc.open_csv(path, convert_options=text, read_options=pc.ReadOptions(block_size=1 << 24))


def make_file(path: Path, rows: int, *, seed: int = 7) -> None:
    """Write ``rows`` price rows of up to 2,000 series in random time order, without repeats."""
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
                "observed_at": pa.array(observed, pa.timestamp("us", "UTC")),
                "price_usd": pa.array(np.round(rng.uniform(0.5, 3.0, len(number)), 4)),
                "on_demand_usd": pa.array(np.full(len(number), 3.06)),
            }
        )
        if path.suffix == ".csv":
            at = table.column_names.index("observed_at")
            table = table.set_column(at, "observed_at", table["observed_at"].cast(pa.string()))
            writer = writer or pc.CSVWriter(path, table.schema)
        else:
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
        writer.write_table(table)
    writer.close()


def measure(path: Path, store_path: Path, answer: Any) -> None:
    """Ingest one file in this process and send the figures to ``answer``; peak memory is the process's own."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    with open_store(store_path) as store:
        done = ingest_file(store, TidyFiles(), path, options=SourceOptions(values={}))
        (kept,) = store.execute("SELECT count(*) FROM price")[0]
    answer.send(
        {
            "seconds": round(time.perf_counter() - started, 2),
            "added": done.added,
            "repeated": done.repeated,
            "rejected": done.rejected,
            "rows_kept": kept,
            "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            "before_mib": before // 1024,
            "store_mib": round(store_path.stat().st_size / 2**20, 1),
        }
    )


def run(rows: int = 1_000_000, *, suffix: str = ".parquet", folder: Path | None = None) -> dict[str, Any]:
    """Make a file of ``rows`` rows and ingest it twice: as it is, and under another name (all rows repeat)."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / f"prices{suffix}"
        make_file(path, rows)
        figures: dict[str, Any] = {
            "rows": rows,
            "format": suffix[1:],
            "file_mib": round(path.stat().st_size / 2**20, 1),
        }
        for turn in ("first", "again"):
            receiver, sender = spawn.Pipe(duplex=False)
            child = spawn.Process(target=measure, args=(path, Path(scratch) / "store.duckdb", sender))
            child.start()
            sender.close()
            figures[turn] = receiver.recv()
            child.join()
            path = path.rename(path.with_stem("renamed"))
        return figures


if __name__ == "__main__":
    arguments = sys.argv[1:]
    size = int(arguments[0]) if arguments else 1_000_000
    print(json.dumps(run(size, suffix=arguments[1] if len(arguments) > 1 else ".parquet"), indent=2))
