"""A large table uses the same statements as a small table: chunks and encoding of its rows change nothing."""

import random
from functools import cache

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forms_kit import quick_first
from storekit import OPTIONS

from slackwater.warehouse import observations
from slackwater.warehouse.errors import StoreError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.observations import IDENTITY, Stage, ingest, ingest_file, numbered_places
from slackwater.warehouse.sources.files.tabular import Tabular
from slackwater.warehouse.store.connection import open_store

BAD = {
    "spot_price_usd_per_hour": [-1.0, float("inf"), None, 1e9],
    "on_demand_price_usd_per_hour": [0.0, -3.0],
    "zone": [None, "a/b", "z" * 300, " "],
    "timestamp": [None, pd.Timestamp("1820-01-01", tz="UTC"), pd.Timestamp("2201-01-01", tz="UTC")],
}


def tidy(rows: int, seed: int) -> pd.DataFrame:
    """Return prices of a few series, some rows duplicated, some contradictory, some unusable."""
    rng = random.Random(seed)
    start = pd.Timestamp("2023-01-01", tz="UTC")
    found = [
        {
            "provider": "aws",
            "region": "us-west-2",
            "zone": f"us-west-2{rng.choice('abc')}",
            "instance_type": rng.choice(["p3.2xlarge", " p3.2xlarge", "g5.xlarge"]),
            "product": rng.choice(["Linux/UNIX", "Windows", None, ""]),
            "timestamp": start + pd.Timedelta(minutes=rng.randrange(2 * rows)),
            "spot_price_usd_per_hour": round(rng.uniform(1.0, 3.0), 1),
            "on_demand_price_usd_per_hour": rng.choice([3.06, None]),
        }
        for _ in range(rows)
    ]
    for row in rng.sample(found, rows // 10):
        name = rng.choice(list(BAD))
        row[name] = rng.choice(BAD[name])
    return pd.DataFrame(found + rng.sample(found, rows // 5))


def write(path, frame, **how):
    pq.write_table(pa.Table.from_pandas(frame, preserve_index=False), path, **how)
    return path


def kept(store):
    """Return the contents of the tables without the number of the import."""
    tables = {name: read_rows(store, name) for name in ("price", "series", "markets", "rejected")}
    return {
        name: frame.drop(columns=[c for c in ("batch", "file") if c in frame]).to_numpy().tolist()
        for name, frame in tables.items()
    }


@pytest.fixture(scope="module")
def uncut(tmp_path_factory):
    """Return a function of a seed: its rows, a plain file with them, and what the import of that file gives."""

    @cache
    def found(seed):
        frame, path = tidy(400, seed), tmp_path_factory.mktemp("plain") / "a.parquet"
        with open_store(":memory:") as store:
            done = ingest_file(store, Tabular(), write(path, frame), options=OPTIONS)
            return frame, path, done, kept(store)

    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 4))])
@pytest.mark.parametrize(
    "how", quick_first([{"row_group_size": 37}, {"use_dictionary": False}, {"dictionary_pagesize_limit": 64}])
)
def test_how_a_file_is_cut_and_coded_changes_nothing(monkeypatch, uncut, seed, how):
    frame, path, one, plain = uncut(seed)
    monkeypatch.setattr(observations, "STAGED_BYTES", 1)
    monkeypatch.setattr(observations, "PART_ROWS", 50)
    with open_store(":memory:") as store:
        two = ingest_file(store, Tabular(), write(path, frame, **how), options=OPTIONS)
        other = kept(store)
    assert (one, one.reasons) == (two, two.reasons)
    assert one.added + one.repeated + one.rejected == len(frame)
    assert one.rejected > 20
    assert one.repeated > 20
    assert plain["rejected"] == other["rejected"]
    assert sorted(map(repr, plain["price"])) == sorted(map(repr, other["price"]))


def test_a_table_of_text_says_what_one_of_numbers_says(tmp_path):
    frame = tidy(400, 9)
    with open_store(":memory:") as typed, open_store(":memory:") as text:
        one = ingest_file(typed, Tabular(), write(tmp_path / "a.parquet", frame), options=OPTIONS)
        frame.to_csv(tmp_path / "b.csv", index=False)
        two = ingest_file(text, Tabular(), tmp_path / "b.csv", options=OPTIONS)
        assert one == two
        assert sorted(map(repr, kept(typed)["price"])) == sorted(map(repr, kept(text)["price"]))
        assert one.reasons == two.reasons


def test_the_same_rows_again_are_repeats_and_are_refused_again(tmp_path):
    frame = tidy(400, 5)
    with open_store(":memory:") as store:
        first = ingest(store, "tabular", write(tmp_path / "a.parquet", frame))
        before = repr(kept(store)["price"])
        again = ingest(store, "tabular", write(tmp_path / "b.parquet", frame))
        assert again.added == 0
        assert again.rejected == first.rejected
        assert again.repeated == first.added + first.repeated
        assert repr(kept(store)["price"]) == before


@pytest.mark.parametrize("seed", range(5))
def test_places_are_numbered_as_grouping_would(seed):
    rng = np.random.default_rng(seed)
    rows = 500

    def column(kinds, *, coded):
        values = pa.array(rng.choice([None, *"abcdefgh"[:kinds]], rows))
        halves = [values[:200], values[200:]]
        return pa.chunked_array([half.dictionary_encode() for half in halves] if coded else halves)

    table = pa.table(
        {name: column(1 + k, coded=bool(rng.integers(2))) for k, name in enumerate(IDENTITY)}
        | {"price_usd": rng.uniform(size=rows)}
    )
    pid, places = numbered_places(table)
    frame = table.select(list(IDENTITY)).to_pandas().astype(object)
    expected = frame.groupby(list(IDENTITY), sort=False, dropna=False).ngroup()
    assert pid.to_pylist() == expected.tolist()
    assert places["pid"].to_pylist() == list(range(expected.max() + 1))
    told = places.select(list(IDENTITY)).to_pandas().astype(object).take(pid).reset_index(drop=True)
    assert told.where(told.notna(), None).equals(frame.where(frame.notna(), None))


def test_names_that_are_no_texts_are_places_of_their_own():
    table = pa.table(
        {"region": [["a"], ["a"], ["b"]], "zone": ["x", "x", None], "price_usd": [1.0, 2.0, 3.0]}
    )
    pid, places = numbered_places(table)
    assert pid.to_pylist() == [0, 1, 2]
    assert places["zone"].to_pylist() == ["x", "x", None]
    assert numbered_places(table.select(["price_usd"]))[0].to_pylist() == [0, 0, 0]


def test_rows_that_leave_the_sort_out_of_order_are_never_merged(monkeypatch):
    monkeypatch.setattr(observations, "_KEY", "n DESC")
    with open_store(":memory:") as store:
        Stage(store, "observed_at")
        store.execute(
            "INSERT INTO staged_series SELECT 1, 1, '', 's', 'p', 'r', 'z', 't', 'x', 'price', NULL, NULL"
        )
        store.execute(
            "INSERT INTO staged_price SELECT 1, i, i, to_timestamp(i), to_timestamp(i), 1.0, NULL FROM range(100) AS r(i)"
        )
        with pytest.raises(StoreError, match="99 of 100 rows left a sort out of order"):
            observations._sort(store, observations.PRICE)
