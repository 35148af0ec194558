"""M1.2: each row is counted once as added, repeated or rejected; importing the same rows again changes nothing."""

import random
from types import SimpleNamespace
from typing import ClassVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from forms_kit import quick_first
from hypothesis import given, settings
from hypothesis import strategies as st
from open_data import DATA
from storekit import (
    DAY,
    HOUR,
    MINUTE,
    OPTIONS,
    T0,
    JsonSource,
    batch,
    count_row,
    counts,
    duplicates,
    price_row,
    prices,
    random_observations,
    reasons,
    tables,
    text_rows,
    write_json,
)
from storeprocess import FORKS

from benchmarks.ingest import run as run_ingest
from slackwater.warehouse.errors import SettingsError, SourceFileError, StoreError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.observations import LONGEST_NAME, Appended, append, ingest_file, shortened_names
from slackwater.warehouse.sources.contract import Batch, SourceOptions
from slackwater.warehouse.store.connection import open_store


def done(added=0, repeated=0, rejected=0):
    return Appended(added=added, repeated=repeated, rejected=rejected)


def test_rows_are_cast_from_text_as_from_numbers():
    rows = [price_row(T0, 0.5, on_demand_usd=3.06), price_row(T0 + HOUR, 1.25, line=2, product=None)]
    typed, text = open_store(":memory:"), open_store(":memory:")
    with typed, text:
        assert append(typed, prices(*rows), source="t") == done(added=2)
        assert append(text, prices(*text_rows(rows)), source="t") == done(added=2)
        assert tables(typed) == tables(text)
        assert [r[5] for r in tables(typed)["price"]] == ["Linux/UNIX", "unspecified"]


def test_times_are_iso_8601_and_utc_when_they_name_no_zone(store):
    forms = (
        "2023-03-01",
        "2023-03-01T00:00:00Z",
        "2023-03-01 02:00:00+02:00",
        "2023-03-01T00:00Z",
        "2023-03-01T00:00:00.000000000",
    )
    rows = [price_row(text, "1", line, zone=f"z{line}") for line, text in enumerate(forms)]
    assert append(store, prices(*rows), source="t") == done(added=len(forms))
    assert store.execute("SELECT DISTINCT epoch_us(observed_at) FROM price") == [(T0.value // 1000,)]


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
def test_arrow_timestamps_of_every_unit(store, zone):
    digits = {"s": 9, "ms": 6, "us": 3, "ns": 0}
    for unit, more in digits.items():
        rows = pa.Table.from_pylist([price_row(None, 1.0, zone=unit)])
        at = pa.array([T0.value // 10**more], pa.timestamp(unit, zone))
        rows = rows.set_column(rows.column_names.index("observed_at"), "observed_at", at)
        append(store, [Batch(kind="price", table=rows)], source="t")
    found = store.execute(
        "SELECT zone, epoch_us(observed_at) FROM price JOIN series USING (sid) JOIN markets USING (mid)"
    )
    assert sorted(found) == sorted((unit, T0.value // 1000) for unit in digits)


BAD_PRICES = {
    "no price_usd": {"price_usd": ""},
    "price_usd abc is not a number": {"price_usd": "abc"},
    "price_usd nan is not finite": {"price_usd": "nan"},
    "price_usd inf is not finite": {"price_usd": "inf"},
    "price_usd -0.1 is negative": {"price_usd": "-0.1"},
    "price_usd 0.00 is a placeholder, not a price": {"price_usd": "0.00"},
    "price_usd N/A is not a number": {"price_usd": "N/A"},
    "price_usd - is not a number": {"price_usd": "-"},
    "no observed_at": {"observed_at": None},
    "observed_at yesterday is not a time": {"observed_at": "yesterday"},
    "observed_at epoch is not a time": {"observed_at": "epoch"},
    "observed_at infinity is not a time": {"observed_at": "infinity"},
    "observed_at 2023-02-30 is not a time": {"observed_at": "2023-02-30"},
    "observed_at 2023-03-01T25:00:00 is not a time": {"observed_at": "2023-03-01T25:00:00"},
    "observed_at 1066-10-14 is outside 1900..2200": {"observed_at": "1066-10-14"},
    "known_at soon is not a time": {"known_at": "soon"},
    "known_at 2023-02-28 is before observed_at": {"known_at": "2023-02-28"},
    "no zone": {"zone": "  "},
    "no source": {"source": None},
    "instance_type a/b contains / or @": {"instance_type": "a/b"},
    "region r@s contains / or @": {"region": "r@s"},
}
BAD_COUNTS = {
    "no available": {"available": None},
    "available 1.5 is not a whole number >= 0": {"available": "1.5"},
    "available -1 is not a whole number >= 0": {"available": "-1"},
    "available many is not a whole number >= 0": {"available": "many"},
    "available 99999999999 is more than 1,000,000 instances": {"available": "99999999999"},
    "available 17 is above the capacity 16": {"available": "17"},
    "capacity -4 is not a whole number >= 0": {"capacity": "-4"},
    "gap_seconds 0 is not a positive number": {"gap_seconds": "0"},
    "kind Launches is none of probe, held, offers, score, band": {"kind": "Launches"},
    "truncated maybe is not true or false": {"truncated": "maybe"},
    "no provider": {"provider": ""},
}


def test_a_price_that_cannot_be_used_is_kept_with_its_reason(store):
    """Each bad row has a good row of its series in the same file: an error affects its row only."""
    rows = [price_row(T0, 1.0, line) | wrong for line, wrong in enumerate(BAD_PRICES.values())]
    good = [price_row(T0 + HOUR, 1.0, 100, **own) for own in ({}, {"zone": "us-west-2b"})]
    assert append(store, prices(*text_rows(rows + good)), source="t") == done(added=2, rejected=len(rows))
    kept = read_rows(store, "rejected")
    assert dict(zip(kept["line"], kept["reason"], strict=True)) == dict(enumerate(BAD_PRICES))
    assert set(kept["file"]) == {"f.csv"}
    assert all('"instance_type":' in raw for raw in kept["raw"])


def test_an_on_demand_price_that_is_none_costs_itself_and_is_counted(store):
    odd = ["0", "-1", "N/A", "-", "nan", "inf", "", None]
    rows = [price_row(T0 + k * HOUR, "0.5", k, on_demand_usd=text) for k, text in enumerate(odd)]
    got = append(store, prices(*rows, price_row(T0 - HOUR, "0.5", 9, on_demand_usd="3")), source="t")
    assert got == done(added=9)
    assert got.set_aside == {"on_demand_usd is not a price": 5}  # nan and empty count as no price
    assert [r[9] for r in tables(store)["price"]] == [3.0] + [None] * 8


def test_a_count_that_cannot_be_used_is_kept_with_its_reason(store):
    rows = [count_row(T0, 1, line) | wrong for line, wrong in enumerate(BAD_COUNTS.values())]
    good = count_row(T0 + HOUR, 1, 100)
    assert append(store, counts(*text_rows([*rows, good])), source="t") == done(added=1, rejected=len(rows))
    assert reasons(store) == list(BAD_COUNTS)


def test_missing_numbers_of_floating_columns_are_missing(store):
    nan = float("nan")
    append(store, counts(count_row(T0, 7.0, capacity=nan, gap_seconds=nan)), source="t")
    append(store, prices(price_row(T0, 0.5, on_demand_usd=nan)), source="t")
    assert tables(store)["availability"][0][-3:] == (7, None, False)
    assert tables(store)["price"][0][-1] is None


def test_optional_columns_may_be_absent(store):
    needed = {
        k: count_row(T0, 3)[k]
        for k in ("source", "provider", "region", "zone", "instance_type", "observed_at", "available")
    }
    assert append(store, counts(needed), source="t") == done(added=1)
    assert append(store, counts({k: v for k, v in needed.items() if k != "available"}), source="t") == done(
        rejected=1
    )


@pytest.mark.parametrize("seed", range(4))
def test_lines_that_contradict_each_other_are_set_aside_whatever_their_order_and_equal_lines_repeat(seed):
    rows = [
        price_row(T0, 1.0, 1),
        price_row(T0, 2.0, 2),
        price_row(T0, 1.0, 3),
        price_row(T0 + HOUR, 5.0, 4),
        price_row(T0 + HOUR, 5.0, 5, on_demand_usd=9.0),
        price_row(T0 + 2 * HOUR, 6.0, 6, on_demand_usd=9.0),
        price_row(T0 + 2 * HOUR, 6.0, 7, on_demand_usd=8.0),
    ]
    random.Random(seed).shuffle(rows)
    with open_store(":memory:") as store:
        assert append(store, prices(*rows), source="t") == done(added=1, repeated=1, rejected=5)
        of = "of the same market and time"
        assert reasons(store) == [
            f"contradicts line 3 {of}", f"contradicts line 1 {of}", f"contradicts line 1 {of}",
            f"contradicts line 7 {of}", f"contradicts line 6 {of}",
        ]  # fmt: skip
        assert [(r[8], r[9]) for r in tables(store)["price"]] == [(5.0, 9.0)]


@pytest.mark.parametrize("staged_bytes", [1, 32 << 20])
def test_lines_contradict_each_other_across_chunks_of_a_file(store, tmp_path, monkeypatch, staged_bytes):
    """Holds for separate and for joint staging."""
    monkeypatch.setattr("slackwater.warehouse.observations.STAGED_BYTES", staged_bytes)
    path = write_json(tmp_path / "a.json", availability=[count_row(T0, n, n) for n in range(1, 9)])
    assert ingest_file(store, JsonSource(chunk=2), path, options=OPTIONS) == done(rejected=8)
    assert tables(store)["availability"] == []


def test_across_files_equal_rows_repeat_and_others_conflict(store):
    assert append(store, counts(count_row(T0, 3)), source="t") == done(added=1)
    assert append(store, counts(count_row(T0, 3, file="g")), source="t") == done(repeated=1)
    assert append(store, counts(count_row(T0, 4, file="h")), source="t") == done(rejected=1)
    assert reasons(store) == ["conflicts with stored value 3"]
    assert [r[8] for r in tables(store)["availability"]] == [3]


def test_a_different_value_known_later_is_a_revision(store):
    append(store, prices(price_row(T0, 1.0)), source="t")
    assert append(store, prices(price_row(T0, 2.0)), source="t", known_at=T0 + DAY) == done(added=1)
    assert append(store, prices(price_row(T0, 2.0)), source="t", known_at=T0 + 2 * DAY) == done(repeated=1)
    assert append(store, prices(price_row(T0, 1.0)), source="t", known_at=T0 + 3 * DAY) == done(added=1)
    assert [(r[7], r[8]) for r in tables(store)["price"]] == [
        (T0.value // 1000, 1.0),
        ((T0 + DAY).value // 1000, 2.0),
        ((T0 + 3 * DAY).value // 1000, 1.0),
    ]


def test_revisions_inside_one_file(store):
    rows = [price_row(T0, v, n, known_at=T0 + n * HOUR) for n, v in enumerate([1.0, 1.0, 2.0, 1.0, 1.0])]
    assert append(store, prices(*rows), source="t") == done(added=3, repeated=2)


def test_known_at_rules(store):
    rows = [price_row(T0, 1.0, known_at=T0 + MINUTE), price_row(T0 + DAY, 1.0), price_row(T0 + 3 * DAY, 1.0)]
    append(store, prices(*rows), source="t", known_at=T0 + 2 * DAY)
    known = [pd.Timestamp(r[7] * 1000, tz="UTC") for r in tables(store)["price"]]
    assert known == [T0 + MINUTE, T0 + 2 * DAY, T0 + 3 * DAY]
    with pytest.raises(SettingsError, match="time zone"):
        append(store, [], source="t", known_at=pd.Timestamp("2023-01-01"))
    rules = read_rows(store, "imports")["known_at_rule"].tolist()
    assert rules == ["max(observed_at, 2023-03-03T00:00:00+00:00)"]


def test_an_on_demand_price_that_is_not_stated_contradicts_nothing(store):
    append(store, prices(price_row(T0, 1.0)), source="t")
    assert append(store, prices(price_row(T0, 1.0, on_demand_usd=3.06)), source="t") == done(repeated=1)
    assert append(store, prices(price_row(T0, 1.0, file="x")), source="t") == done(repeated=1)
    assert tables(store)["price"][0][-2:] == (1.0, 3.06)
    assert append(store, prices(price_row(T0, 1.0, on_demand_usd=4.0)), source="t") == done(rejected=1)
    assert reasons(store) == ["conflicts with stored on_demand_usd 3.06"]
    later = prices(price_row(T0, 1.0, on_demand_usd=4.0))
    assert append(store, later, source="t", known_at=T0 + DAY) == done(added=1)


def test_inside_a_file_a_stated_on_demand_price_is_not_lost(store):
    rows = [price_row(T0, 1.0, 1, on_demand_usd=3.06), price_row(T0, 1.0, 2)]
    assert append(store, prices(*rows), source="t") == done(added=1, repeated=1)
    assert tables(store)["price"][0][-2:] == (1.0, 3.06)


def test_series_do_not_touch_each_other(store):
    rows = [
        price_row(T0, 1.0),
        price_row(T0, 2.0, source="b"),
        price_row(T0, 3.0, product="Windows"),
        price_row(T0, 4.0, zone="us-west-2b"),
    ]
    assert append(store, prices(*rows), source="t") == done(added=4)


def test_rejected_batches_are_kept_as_they_are(store):
    rows = [
        {"file": "f", "line": 3, "raw": "???", "reason": "not a row"},
        {"file": "f", "line": 9, "raw": "x", "reason": "superseded by magic"},
    ]
    mixed = [batch("rejected", rows), *prices(price_row(T0, 1.0))]
    assert append(store, mixed, source="t") == done(added=1, rejected=2)
    assert read_rows(store, "rejected")["raw"].tolist() == ["???", "x"]


def test_the_same_file_again_is_not_read_again_and_adds_nothing(store, tmp_path):
    rows = [count_row(T0 + k * HOUR, k, k) for k in range(5)] + [
        count_row(T0 + DAY, 17, 6),
        count_row(T0 + DAY, -1, 7),
    ]
    path = write_json(tmp_path / "a.json", availability=rows, price=[price_row(T0, 1.0)])
    source = JsonSource(words=["dates assumed"])
    at = pd.Timestamp("2026-01-01", tz="UTC")
    assert ingest_file(store, source, path, options=OPTIONS, imported_at=at) == done(added=6, rejected=2)
    before = tables(store), len(read_rows(store, "imports"))
    assert ingest_file(store, source, path, options=OPTIONS, imported_at=at + DAY) == done(
        repeated=6, rejected=2
    )
    assert (tables(store), len(read_rows(store, "imports"))) == before
    assert source.reads == 1
    (ledger,) = read_rows(store, "imports").to_dict("records")
    assert (ledger["added"], ledger["repeated"], ledger["rejected"], ledger["imported_at"]) == (6, 0, 2, at)
    assert read_rows(store, "assumptions")["text"].tolist() == ["dates assumed"]


def test_other_options_or_another_name_read_the_file_again_but_keep_no_row_twice(store, tmp_path):
    rows = [price_row(T0, 1.0, 1), price_row(T0 + HOUR, -1.0, 3)]
    source = JsonSource()
    path = write_json(tmp_path / "a.json", price=rows)
    assert ingest_file(store, source, path, options=OPTIONS) == done(added=1, rejected=1)
    before = tables(store)
    assert ingest_file(store, source, path, options=SourceOptions(values={"zone": "z"})) == done(
        repeated=1, rejected=1
    )
    other = write_json(tmp_path / "b.json", price=rows)
    assert ingest_file(store, source, other, options=OPTIONS) == done(repeated=1, rejected=1)
    assert source.reads == 3
    assert tables(store) == before


def test_the_same_batches_again_add_nothing(store):
    rows = [price_row(T0, 1.0), price_row(T0, -1.0, 2)]
    assert append(store, prices(*rows), source="t") == done(added=1, rejected=1)
    before = tables(store)
    assert append(store, prices(*rows), source="t") == done(repeated=1, rejected=1)
    assert tables(store) == before


def test_rows_that_are_stored_exactly_so_are_not_compared_one_by_one(store, monkeypatch):
    class Compared(Exception):
        pass

    def compared(*_):
        raise Compared

    known = price_row(T0, 1.0), price_row(T0 + HOUR, 2.0, on_demand_usd=9.0)
    append(store, prices(*known), source="t")
    monkeypatch.setattr("slackwater.warehouse.observations._choose_winners", compared)
    done = append(store, prices(*known, price_row(T0 + 2 * HOUR, 3.0)), source="t")
    assert (done.added, done.repeated, done.rejected) == (1, 2, 0)
    news = (price_row(T0, 1.5), price_row(T0, 1.0, on_demand_usd=9.0), price_row(T0, 1.0, known_at=T0 + HOUR))
    for row in news:
        with pytest.raises(Compared):
            append(store, prices(*known, row), source="t")


def test_a_file_that_fails_half_way_leaves_nothing(store, tmp_path, monkeypatch):
    class Breaking(JsonSource):
        def read(self, path, options):
            yield from super().read(path, options)
            raise SourceFileError(path, 99, "the end is missing", remedy="fetch it again")

    path = write_json(tmp_path / "a.json", price=[price_row(T0, 1.0)])
    with pytest.raises(SourceFileError, match="line 99"):
        ingest_file(store, Breaking(), path, options=OPTIONS)
    assert tables(store) == {"price": [], "availability": [], "rejected": []}
    with monkeypatch.context() as patch:
        patch.setattr(
            "slackwater.warehouse.observations.keep_assumptions", None
        )  # the last step of an import
        with pytest.raises(TypeError):
            ingest_file(store, JsonSource(), path, options=OPTIONS)
    assert tables(store) == {"price": [], "availability": [], "rejected": []}
    assert ingest_file(store, JsonSource(), path, options=OPTIONS) == done(added=1)


def test_a_whole_turn_in_one_transaction(store):
    def fail_late():
        with store.transaction():
            append(store, prices(price_row(T0, 1.0)), source="t")
            append(store, counts(count_row(T0, 1)), source="t")
            assert len(tables(store)["price"]) == 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_late()
    assert tables(store) == {"price": [], "availability": [], "rejected": []}
    with store.transaction():
        append(store, prices(price_row(T0, 1.0)), source="t")
    assert len(tables(store)["price"]) == 1


def by_kind(rows):
    return [batch(kind, [row for k, row in rows if k == kind]) for kind in ("price", "availability")]


@pytest.mark.parametrize("examples", quick_first([2, 30]))
def test_any_order_and_any_split_give_the_same_tables(examples):
    @settings(max_examples=examples, deadline=None)
    @given(
        seed=st.integers(0, 10**6),
        cuts=st.lists(st.integers(1, 20), min_size=1, max_size=4),
        order=st.randoms(use_true_random=False),
    )
    def any_order_and_split(seed, cuts, order):
        """Every version has a value of its own: a repeat depends on the rows that are stored already."""
        rows = random_observations(seed)
        shuffled = rows * 2
        order.shuffle(shuffled)
        with open_store(":memory:") as one, open_store(":memory:") as many:
            append(one, by_kind(rows), source="t")
            total = 0
            for size in [*cuts, len(shuffled)]:
                part, shuffled = shuffled[:size], shuffled[size:]
                got = append(many, by_kind(part), source="t")
                assert got.added + got.repeated + got.rejected == len(part)
                total += got.added
            assert tables(one) == tables(many)
            assert duplicates(many) == 0
            assert total == len(tables(many)["price"]) + len(tables(many)["availability"])

    any_order_and_split()


@pytest.mark.parametrize("examples", quick_first([3, 50]))
def test_contradicting_rows_are_all_counted_and_never_double(examples):
    @settings(max_examples=examples, deadline=None)
    @given(
        rows=st.lists(
            st.tuples(
                st.integers(0, 3),
                st.integers(0, 2),
                st.sampled_from([None, 3, 4]),
                st.integers(0, 2),
                st.booleans(),
            ),
            min_size=1,
            max_size=24,
        ),
        cut=st.integers(0, 24),
    )
    def contradicting_rows(rows, cut):
        made = [
            price_row(
                T0 + at * HOUR,
                float(price) if ok else -1.0,
                line,
                on_demand_usd=od,
                known_at=T0 + (at + known) * HOUR,
            )
            for line, (at, price, od, known, ok) in enumerate(rows, 1)
        ]
        with open_store(":memory:") as store:
            for part in (made[:cut], made[cut:], made[:cut], made[cut:]):
                before = len(tables(store)["price"]), len(reasons(store))
                got = append(store, prices(*part) if part else [], source="t")
                assert got.added + got.repeated + got.rejected == len(part)
                assert len(tables(store)["price"]) - before[0] == got.added
                assert len(reasons(store)) - before[1] <= got.rejected
                assert duplicates(store) == 0
            final = tables(store)
            for part in (made[:cut], made[cut:]):
                assert append(store, prices(*part) if part else [], source="t").added == 0
            assert tables(store) == final

    contradicting_rows()


@pytest.mark.parametrize("part_rows", quick_first([12, 1, 4, 25]))
def test_merging_in_parts_gives_the_same_tables(monkeypatch, part_rows):
    """Large files are merged in parts, by series and, for a long series, by time."""
    rows = random_observations(3, size=40) + random_observations(3, size=20)
    rows += [("price", price_row(T0 + k * MINUTE, 1.0, k, source="long")) for k in range(30)]
    rows += [("price", price_row(T0 + k * MINUTE, 2.0, 100 + k, source="long")) for k in range(5)]
    with open_store(":memory:") as whole, open_store(":memory:") as parts:
        expected = append(whole, by_kind(rows), source="t")
        monkeypatch.setattr("slackwater.warehouse.observations.PART_ROWS", part_rows)
        assert append(parts, by_kind(rows), source="t") == expected
        assert expected.rejected == 10
        assert tables(parts) == tables(whole)
        assert append(parts, by_kind(rows[::-1]), source="t").added == 0


def test_an_import_that_breaks_inside_a_turn_says_what_broke(store):
    def fail():
        with store.transaction():
            store.execute("DROP TABLE rejected")
            append(store, prices(price_row(T0, 1.0), price_row(T0 + MINUTE, -1.0)), source="t")

    with pytest.raises(StoreError, match="rejected"):
        fail()
    assert append(store, prices(price_row(T0, 1.0)), source="t") == done(added=1)


@pytest.mark.parametrize(
    ("rows", "suffix"),
    [
        (10_000, ".csv"),
        pytest.param(10_000_000, ".csv", marks=pytest.mark.slow),
        pytest.param(10_000_000, ".parquet", marks=pytest.mark.slow),
    ],
)
def test_a_large_file_is_taken_in_bounded_memory(tmp_path, monkeypatch, rows, suffix):
    """The process may grow to 1.5 times the memory limit of the store (1 GB), whatever the size of the file."""
    if rows == 10_000:  # new processes would spend most of their time importing modules
        monkeypatch.setattr("benchmarks.ingest.multiprocessing", SimpleNamespace(get_context=lambda _: FORKS))
    figures = run_ingest(rows, suffix=suffix, folder=tmp_path)
    assert (figures["first"]["added"], figures["again"]["repeated"]) == (rows, rows)
    for turn in ("first", "again"):
        assert figures[turn]["rows_kept"] == rows
        assert figures[turn]["peak_mib"] - figures[turn]["before_mib"] < 1500


def test_what_cannot_be_kept_says_so(tmp_path):
    path = tmp_path / "w.duckdb"
    open_store(path).close()
    with open_store(path, read_only=True) as store, pytest.raises(StoreError, match="read-only"):
        append(store, prices(price_row(T0, 1.0)), source="t")


class TidyParquet:
    """Source of the two tables of the open histories, straight from Parquet."""

    name = "tidy-parquet"
    has_files = True
    examples: ClassVar = {}
    options: ClassVar = {}
    renamed: ClassVar = {
        "timestamp": "observed_at",
        "spot_price_usd_per_hour": "price_usd",
        "on_demand_price_usd_per_hour": "on_demand_usd",
        "capacity_probed": "capacity",
    }

    def time_zone(self, path, options):
        return "UTC"

    def files(self, paths):
        return list(paths)

    def assumptions(self, path, options):
        return ()

    def read(self, path, options):
        line = 1
        for chunk in pq.ParquetFile(path).iter_batches(100_000):
            table = pa.Table.from_batches([chunk])
            table = table.rename_columns([self.renamed.get(name, name) for name in table.column_names])
            table = table.append_column("line", pa.array(range(line, line + len(table))))
            line += len(table)
            yield Batch(kind="price" if "price" in path.name else "availability", table=table)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rows"), [("prices.parquet", 293_207), ("availability.parquet", 343_689)])
def test_the_open_histories_are_counted_exactly(tmp_path, data_folder, name, rows):
    with open_store(tmp_path / "w.duckdb") as store:
        assert ingest_file(store, TidyParquet(), data_folder / name, options=OPTIONS) == done(added=rows)
        assert ingest_file(store, TidyParquet(), data_folder / name, options=OPTIONS) == done(repeated=rows)
        again = ingest_file(
            store, TidyParquet(), data_folder / name, options=OPTIONS, known_at=T0 + 9999 * DAY
        )
        assert again == done(repeated=rows)
        assert duplicates(store) == 0


@pytest.fixture
def data_folder():
    folder = DATA
    if not folder.is_dir():
        pytest.skip(f"no open histories in {folder}: set SLACKWATER_DATA")
    return folder


def test_a_name_of_a_million_characters_in_every_row_is_rejected_without_its_weight():
    """Each row repeats the name: a thousand rows would take a gigabyte."""
    rows = 50
    table = pa.table(
        {"source": ["s"] * rows, "instance_type": ["z" * 1_000_000] * rows, "price_usd": [1.0] * rows}
    )
    short = shortened_names(table)
    assert set(short["instance_type"].to_pylist()) == {"z" * 2 * LONGEST_NAME}
    assert short["source"].to_pylist() == table["source"].to_pylist()
    assert shortened_names(short).equals(short)
