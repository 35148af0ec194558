"""Well-formed rows with impossible values: future times, excessive prices, unknown time zones, unprintable names."""

from collections import Counter

import pandas as pd
import pyarrow as pa
import pytest
from storekit import DAY, HOUR, T0, count_row, counts, price_row, prices, reasons, text_rows

from slackwater.flows.config import BoundSettings
from slackwater.warehouse.asof import load_history
from slackwater.warehouse.history import Market
from slackwater.warehouse.observations import Bounds, append, ingest, rejected_rows
from slackwater.warehouse.sources.contract import Batch
from slackwater.warehouse.store.connection import open_store

NOW = Bounds(clock=T0 + DAY)


def put(store, rows, bounds=NOW):
    return append(store, rows, source="t", bounds=bounds)


def test_a_row_from_the_future_is_set_aside_and_spoils_no_other(store):
    late = count_row(T0 + 3650 * DAY, 1, 2)
    done = put(store, counts(count_row(T0, 3), late, count_row(T0 + HOUR, 4, 3)))
    assert (done.added, done.rejected) == (2, 1)
    assert done.reasons == {"observed_at is in the future": 1}
    assert store.execute("SELECT max(observed_at) FROM availability")[0][0] == T0 + HOUR
    market = Market(provider="aws", region="us-west-2", zone="us-west-2a", instance_type="p3.2xlarge")
    put(store, prices(price_row(T0, 1.0)))
    history = load_history(store, market, step=HOUR, known_at=T0 + HOUR, end=T0 + HOUR)
    assert history.available.tolist() == [3, 4]


@pytest.mark.parametrize("column", ["observed_at", "known_at"])
def test_what_is_the_future_is_counted_from_the_clock_and_the_bound_is_a_setting(store, column):
    at = NOW.clock + pd.Timedelta(hours=25)
    row = count_row(at if column == "observed_at" else T0, 3) | {column: at}
    assert put(store, counts(row)).rejected == 1
    assert put(store, counts(row), BoundSettings(future_hours=48).at(NOW.clock)).added == 1
    assert put(store, counts(row | {"line": 2}), BoundSettings().at(at)).repeated == 1


def test_without_a_clock_and_long_ago_every_time_is_taken(store):
    rows = counts(count_row(pd.Timestamp("1999-01-01T00:00Z"), 3), count_row(T0 + 3650 * DAY, 3, 2))
    assert put(store, rows, Bounds()).added == 2
    assert put(store, counts(count_row(pd.Timestamp("1998-01-01T00:00Z"), 3))).added == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"price_usd": 85.0}, "price_usd 85.0 is far above on-demand: more than 20 times 4.234"),
        ({"price_usd": 41.0, "on_demand_usd": 2.0}, "price_usd 41.0 is far above on-demand: more than 20 times 2.0"),
        ({"price_usd": 1.0, "on_demand_usd": 1e9}, "on_demand_usd 1000000000.0 is far above on-demand: more than 20 times 4.234"),
        # A month of 730 hours of spot at 5 % of on-demand, and of on-demand.
        ({"price_usd": 111.69, "on_demand_usd": 3.06}, "price_usd 111.69 is far above on-demand: more than 20 times 3.06"),
        ({"price_usd": 900.0, "on_demand_usd": 2233.8}, "on_demand_usd 2233.8 is far above on-demand: more than 20 times 4.234"),
    ],
)  # fmt: skip
def test_a_price_far_above_on_demand_is_none(store, row, reason):
    kept = [price_row(T0, 10.4 * 3.06), price_row(T0 + HOUR, 1.0, 2), price_row(T0 + 2 * HOUR, 1.0, 3) | row]
    assert put(store, prices(*kept)).added == 2
    assert reasons(store) == [reason]
    bounds = BoundSettings(price_times_on_demand=1e9, price_share_of_on_demand=0.0).at(NOW.clock)
    assert put(store, prices(*kept), bounds).added == 1


@pytest.mark.parametrize(
    "row", [{"price_usd": 0.918 / 3600}, {"price_usd": 0.9 / 3600, "on_demand_usd": 3.06}]
)
def test_a_price_far_below_on_demand_as_of_a_second_is_none(store, row):
    kept = [price_row(T0, 0.01), price_row(T0 + HOUR, 1.0, 2), price_row(T0 + 2 * HOUR, 1.0, 3) | row]
    assert put(store, prices(*kept)).added == 2
    assert [reason.split(":")[0].split(maxsplit=2)[2] for reason in reasons(store)] == [
        "is far below on-demand"
    ]
    unlisted = [price_row(T0, 1e-4, instance_type="own")]
    assert put(store, prices(*unlisted)).rejected == 0


@pytest.mark.parametrize(
    ("kind", "gpus"),
    [
        ("H100_SXM_80GB_x1", 1),
        ("8x-H200", 8),
        ("gpu_4x_a6000", 4),
        ("A100:2", 2),
        ("H100", 1),
        ("own-l40s", 1),
        ("RTX_4090_24GB_x1", 0.3),
        ("box", 1),
    ],
)
def test_a_price_per_month_of_a_gpu_in_an_unlisted_type_is_none(store, kind, gpus):
    """A GPU at a dollar or two an hour, and the same as USD a month."""
    rows = [
        price_row(T0, usd * gpus, k, instance_type=kind, provider="own")
        for k, usd in enumerate((2.0, 1.0 * 730), start=1)
    ]
    assert put(store, prices(*rows)).rejected == 1
    (reason,) = reasons(store)
    assert "is far above on-demand: more than 20 times" in reason


@pytest.mark.parametrize(
    ("kind", "usd"), [("H100", 98.3), ("A100-80GB", 40.0), ("b200-node", 113.0), ("box", 142.0)]
)
def test_a_machine_of_eight_gpus_in_a_type_of_unknown_size_is_a_price(store, kind, usd):
    assert put(store, prices(price_row(T0, usd, instance_type=kind, provider="own"))).added == 1


def test_a_type_that_no_list_has_is_measured_by_the_dearest(store):
    rows = [price_row(T0, usd, k, instance_type="own") for k, usd in enumerate((300.0, 1e6), start=1)]
    assert put(store, prices(*rows)).rejected == 1


def test_a_time_without_a_zone_is_none_where_nobody_says_which_it_is(store):
    def rows(*texts):
        made = [price_row(text, 1.0, line, zone=f"z{line}") for line, text in enumerate(texts)]
        return prices(*text_rows(made))

    none = Bounds(time_zone="")
    unsaid = ("2023-03-01", "2023-03-01T00:00:00", "2023-03-01 00:00")
    assert put(store, rows(*unsaid), none).rejected == len(unsaid)
    assert reasons(store) == [f"observed_at {text} names no time zone" for text in unsaid]
    stated = (
        "2023-03-01T00:00:00Z",
        "2023-03-01T01:00:00+01:00",
        "2023-03-01 00:00Z",
        "2023-02-28 19:00:00-05",
    )
    assert put(store, rows(*stated), none).added == len(stated)
    assert put(store, rows(*unsaid)).rejected == 0


def test_a_timestamp_without_a_zone_is_none_likewise(store):
    row = price_row(T0.tz_localize(None), 1.0)
    assert put(store, prices(row), Bounds(time_zone="")).rejected == 1


UNPRINTABLE = {
    "a\x1b[31mb": "contains a character that cannot be printed",
    "a\nb": "contains a character that cannot be printed",
    "a\u202eb": "contains a character that cannot be printed",
    "a\x00b": "contains a character that cannot be printed",
    "x" * 201: "is longer than 200",
}


@pytest.mark.parametrize("column", ["region", "instance_type", "source", "product"])
def test_a_name_that_cannot_be_printed_is_no_name(store, column):
    rows = [price_row(T0, 1.0, line) | {column: name} for line, name in enumerate(UNPRINTABLE)]
    done = put(store, prices(*rows, price_row(T0, 1.0, 100)))
    assert (done.added, done.rejected) == (1, len(rows))
    assert done.reasons == Counter(f"{column} {words}" for words in UNPRINTABLE.values())
    for reason, words in zip(reasons(store), UNPRINTABLE.values(), strict=True):
        assert reason.endswith(words)
        assert reason.isprintable()
        assert len(reason) < 200


def test_names_of_any_language_are_names(store):
    row = price_row(T0, 1.0) | {"region": "Z\u00fcrich-\u6771\u4eac", "instance_type": "x" * 200}
    assert put(store, prices(row)).added == 1


CSV = "provider,region,zone,instance_type,timestamp,available\n"


def test_a_file_with_rows_of_the_future_is_read_again_until_they_are_none(store, tmp_path):
    path = tmp_path / "availability.csv"
    at = T0 + 10 * DAY
    path.write_text(CSV + f"lab,r,z,h,{T0.isoformat()},3\nlab,r,z,h,{at.isoformat()},4\n")

    def read(clock):
        return ingest(store, "tabular", path, imported_at=clock, bounds=Bounds(clock=clock))

    first, again, later = read(T0 + DAY), read(T0 + 2 * DAY), read(at)
    assert (first.added, first.rejected) == (1, 1)
    assert (again.added, again.repeated, again.rejected) == (0, 1, 1)
    assert (later.added, later.repeated, later.rejected) == (1, 1, 0)
    assert len(reasons(store)) == 1, "what was rejected is kept once"


def test_other_bounds_read_a_file_again(store, tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text(
        CSV.replace("available", "spot_price_usd_per_hour") + f"aws,r,z,p3.2xlarge,{T0.isoformat()},9999\n"
    )
    assert ingest(store, "tabular", path).rejected == 1
    assert ingest(store, "tabular", path, bounds=Bounds(price_times_on_demand=1e6)).added == 1


def test_the_same_row_twice_is_a_repeat_and_no_rejection(store):
    row = price_row(T0, 1.0)
    done = put(store, prices(row, row, row | {"line": 9}))
    assert (done.added, done.repeated, done.rejected) == (1, 2, 0)


def test_rejected_rows_are_read_by_source_file_and_reason(store):
    bad = [price_row(T0, -1.0, 1), price_row(T0, -2.0, 2), price_row(T0, 1.0, 3, region="a/b")]
    append(store, prices(*bad), source="one", file="first.csv", imported_at=T0)
    append(store, counts(count_row(T0, 99, 4, file="other.csv")), source="two", imported_at=T0 + DAY)
    whole = rejected_rows(store)
    assert whole.reasons == {
        "price_usd is negative": 2,
        "available is above the capacity": 1,
        "region contains / or @": 1,
    }
    assert [row["line"] for row in whole.rows] == [4, 3, 2, 1]
    assert whole.rows[0]["imported_at"] == T0 + DAY
    assert '"available":99' in whole.rows[0]["raw"]
    assert len(rejected_rows(store, most=1).rows) == 1

    def lines(**asked):
        return sorted(row["line"] for row in rejected_rows(store, **asked).rows)

    assert lines(source="two") == [4]
    assert lines(source="lab") == [1, 2, 3, 4]
    assert lines(file="OTHER") == [4]
    assert lines(reason="is negative") == lines(reason="price_usd is negative") == [1, 2]
    assert lines(reason="-2") == [2]
    assert lines(source="none") == []


SALES = {
    "mode": (["spot", "Spot", "SPOT", "preemptible", "Interruptible", "Spot VM", "true", ""],
             ["on-demand", "OnDemand", "reserved", "flex-start", "DWS", "low priority", "dedicated", "Reserved spot", "false"]),
    "unit": (["hour", "1 Hour", "Hrs", "instance-hour", "per instance", "USD/h", "h", "per hour", "per_instance",
              "usd_per_hour", ""],
             ["GPU-hour", "per GPU", "per_gpu", "gpu_hour", "vCPU", "per vCPU-hour", "month", "second", "cents", "GB"]),
    "currency": (["USD", "usd", "$", "US$"], ["EUR", "CNY", "cents"]),
    "valid_from": (["2023-02-01", "2023-03-01T00:00:00Z", ""], ["2023-03-02", "2024-01-01T00:00:00Z", "soon"]),
    "valid_until": (["2023-03-02", "9999-12-31", ""], ["2023-03-01", "2022-01-01T00:00:00Z", "never"]),
}  # fmt: skip


@pytest.mark.parametrize("column", SALES)
def test_a_price_of_another_mode_unit_currency_or_time_is_none(store, column):
    good, bad = SALES[column]
    rows = [price_row(T0, "1", k, zone=f"z{k:02}", **{column: text}) for k, text in enumerate(good + bad)]
    got = put(store, prices(*text_rows(rows)))
    assert (got.added, got.rejected) == (len(good), len(bad))
    assert all(reason.startswith(column) for reason in got.reasons)
    zones = store.execute(
        "SELECT zone FROM price JOIN series USING (sid) JOIN markets USING (mid) ORDER BY sid"
    )
    assert [zone for (zone,) in zones] == [f"z{k:02}" for k in range(len(good))]


def test_counts_of_another_mode_are_none(store):
    rows = [count_row(T0, 3, zone="a", mode="spot"), count_row(T0, 3, zone="b", mode="on-demand")]
    got = put(store, counts(*rows))
    assert (got.added, got.rejected) == (1, 1)


def test_a_time_is_read_in_the_same_way_whatever_zone_the_session_is_in():
    rows = [
        price_row("2023-03-01 00:00:00", "1", 1, zone="a"),
        price_row("2023-03-01 08:00:00 Asia/Shanghai", "1", 2, zone="b"),
        price_row("2023-03-01 00:00", "1", 3, zone="c"),
        price_row("2023-03-01", "1", 4, zone="d"),
        price_row("2023-03-01T00:00:00.5", "1", 5, zone="e"),
    ]
    plain = pd.Timestamp("2023-03-01")
    naive = pa.Table.from_pylist([price_row(None, 1.0, zone="f")])
    naive = naive.set_column(
        naive.column_names.index("observed_at"), "observed_at", pa.array([plain], pa.timestamp("us"))
    )
    for zone in ("UTC", "America/New_York", "Asia/Kolkata"):
        with open_store(":memory:", sealed=False) as store:
            store.execute(f"SET TimeZone = '{zone}'")
            put(store, prices(*text_rows(rows)))
            put(store, [Batch(kind="price", table=naive)])
            found = store.execute(
                "SELECT zone, epoch_ms(observed_at) FROM price JOIN series USING (sid) JOIN markets USING (mid) ORDER BY zone"
            )
        base = T0.value // 10**6
        assert found == [("a", base), ("c", base), ("d", base), ("e", base + 500), ("f", base)]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("AWS", "aws"),
        (" Azure ", "azure"),
        ("Google Cloud", "gcp"),
        ("VAST.AI", "vast.ai"),
        ("MyLab", "MyLab"),
    ],
)
def test_a_provider_is_one_however_it_is_spelled(store, spelling, name):
    rows = [
        price_row(T0 + k * DAY, "1", k, provider=provider, zone="z")
        for k, provider in enumerate((spelling, name))
    ]
    got = put(store, prices(*text_rows(rows)))
    assert (got.added, got.rejected) == (2, 0)
    assert store.execute("SELECT DISTINCT provider FROM markets") == [(name,)]


def test_counts_beside_shares_of_one_market_are_shares(store):
    values = [("a", 0.8), ("a", 1), ("a", 0), ("b", 1), ("b", 0), ("a", 3)]
    rows = [count_row(T0 + k * HOUR, value, k, zone=zone) for k, (zone, value) in enumerate(values)]
    for some in (rows, text_rows(rows)):
        with open_store(":memory:", sealed=False) as own:
            assert put(own, counts(*some)).rejected == 3
            found = own.execute(
                "SELECT zone, available FROM availability JOIN series USING (sid) JOIN markets USING (mid)"
            )
            assert sorted(found) == [("a", 3), ("b", 0), ("b", 1)]
            assert sum("is a share" in reason for reason in reasons(own)) == 2
