"""Small batches, a source that reads them from JSON files, and readers of the tables, for tests of the store."""

import json
import random
from typing import ClassVar

import pandas as pd
import pyarrow as pa

from slackwater.warehouse.sources.contract import Batch, SourceOptions

MARKET = {"provider": "aws", "region": "us-west-2", "zone": "us-west-2a", "instance_type": "p3.2xlarge"}
T0 = pd.Timestamp("2023-03-01", tz="UTC")
MINUTE, HOUR, DAY = pd.Timedelta(minutes=1), pd.Timedelta(hours=1), pd.Timedelta(days=1)
OPTIONS = SourceOptions(values={})


def price_row(at, price, line=1, **other):
    return {
        "source": "lab", **MARKET, "product": "Linux/UNIX", "observed_at": at, "price_usd": price, "on_demand_usd": None,
        "known_at": None, "file": "f.csv", "line": line, **other,
    }  # fmt: skip


def count_row(at, available, line=1, **other):
    return {
        "source": "lab", **MARKET, "observed_at": at, "available": available, "capacity": 16, "gap_seconds": 600,
        "kind": "probe", "truncated": False, "known_at": None, "file": "f.csv", "line": line, **other,
    }  # fmt: skip


def batch(kind, rows):
    return Batch(kind=kind, table=pa.Table.from_pylist(rows))


def prices(*rows):
    return [batch("price", list(rows))]


def counts(*rows):
    return [batch("availability", list(rows))]


def text_rows(rows):
    """Return the rows with every value as text, as a CSV reader would."""
    return [
        {
            k: None if v is None else (v.isoformat() if isinstance(v, pd.Timestamp) else str(v))
            for k, v in r.items()
        }
        for r in rows
    ]


class JsonSource:
    """Source of {"price": [...], "availability": [...], "rejected": [...]} files: unchanged rows, in chunks."""

    name = "json"
    has_files = True
    examples: ClassVar = {}
    options: ClassVar = {}

    def __init__(self, chunk=3, words=()):
        self.chunk = chunk
        self.words = tuple(words)
        self.reads = 0

    def files(self, paths):
        return sorted(paths)

    def assumptions(self, path, options):
        return self.words

    def time_zone(self, path, options):
        return "UTC"

    def read(self, path, options):
        self.reads += 1
        for kind, rows in json.loads(path.read_text()).items():
            for first in range(0, len(rows), self.chunk):
                yield batch(kind, rows[first : first + self.chunk])


def write_json(path, **kinds):
    path.write_text(json.dumps({kind: text_rows(rows) for kind, rows in kinds.items()}))
    return path


def tables(store, *, known_at=None):
    """Return the observation tables, without the ids that depend on the order of import."""
    found = {}
    for table, columns in (
        ("price", "price_usd, on_demand_usd"),
        ("availability", "available, capacity, truncated"),
    ):
        found[table] = store.execute(
            "SELECT source, provider, region, zone, instance_type, product, epoch_us(observed_at), epoch_us(known_at), "
            f"{columns} FROM {table} JOIN series USING (sid) JOIN markets USING (mid) ORDER BY ALL"
        )
    found["rejected"] = store.execute("SELECT file, line, raw, reason FROM rejected ORDER BY ALL")
    return found


def duplicates(store):
    """Return rows of the observation tables with duplicate keys: there must be none."""
    return sum(
        store.execute(
            f"SELECT count(*) FROM (SELECT sid, observed_at, known_at FROM {t} GROUP BY ALL HAVING count(*) > 1)"
        )[0][0]
        for t in ("price", "availability")
    )


def reasons(store):
    return [row[0] for row in store.execute("SELECT reason FROM rejected ORDER BY line, reason")]


def random_observations(seed, *, size=60, sources=("a", "b")):
    """Return price and count rows without contradictions: the value is a function of (source, time, known_at)."""
    rng = random.Random(seed)
    found = []
    for _ in range(size):
        source, at = rng.choice(sources), T0 + rng.randrange(40) * 7 * MINUTE
        known = at + rng.choice([0, 0, 0, 1, 90]) * MINUTE
        number = int((at - T0) / MINUTE) * 100 + int((known - at) / MINUTE) + (1000 if source == "b" else 0)
        if rng.random() < 0.5:
            found.append(("price", price_row(at, (number + 100) / 1000, source=source, known_at=known)))
        else:
            found.append(
                ("availability", count_row(at, number, source=source, known_at=known, capacity=None))
            )
    return found
