"""Headings of mapped columns that state another unit than their column of ours has (M1.2)."""

import pandas as pd
import pytest
from source_files import read, write

from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.sources.files.tabular import Tabular
from slackwater.warehouse.store.connection import open_store

HEAD = "provider,region,zone,instance_type,timestamp"
LINE = "acme,eu,a,{kind},2026-03-01T00:00:00Z,16.0\n"


def added(folder, heading, kind="h100-node", ours="price"):
    path = write(folder / "p.csv", f'{HEAD},"{heading}"\n' + LINE.format(kind=kind))
    with open_store(":memory:") as store:
        done = ingest(store, "tabular", path, map={ours: heading})
    return done.added, list(done.reasons)


@pytest.mark.parametrize(("heading", "reason"), [
    ("spot_price_per_month", "unit"), ("monthly_price", "unit"), ("usd_per_day", "unit"), ("Cost/min", "unit"),
    ("price_per_1000h", "unit"), ("usd_per_gpu_hour", "unit"), ("GPU price", "unit"), ("$/vCPU-h", "unit"),
    ("spot_cents", "currency"), ("price_eur", "currency"), ("Spot price (€)", "currency"), ("share_%", "currency"),
    ("spot_discount", "currency"), ("savings_pct", "currency"),
])  # fmt: skip
def test_a_price_of_another_unit_by_its_heading_is_set_aside(tmp_path, heading, reason):
    words = {"unit": "unit is not per instance and hour", "currency": "currency is not USD"}
    assert added(tmp_path, heading) == (0, [words[reason]])


@pytest.mark.parametrize("heading", [
    "usd_per_instance_hour", "Spot Price (USD/hr)", "min_bid", "dph", "gpu_instance_price", "SpotPricePerHour", "c",
    "avg_hourly_of_the_month", "discounted price", "hourlyCost",
])  # fmt: skip
def test_a_heading_without_another_unit_is_taken(tmp_path, heading):
    assert added(tmp_path, heading) == (1, [])


@pytest.mark.parametrize(
    ("kind", "usable"),
    [("H100_x1", 1), ("p5.4xlarge", 1), ("H100_x8", 0), ("8xH100", 0), ("p4d.24xlarge", 0)],
)
def test_a_price_per_gpu_is_that_of_an_instance_with_one(tmp_path, kind, usable):
    assert added(tmp_path, "usd_per_gpu_hour", kind)[0] == usable


def test_a_gap_in_minutes_is_no_gap_in_seconds(tmp_path):
    text = f"{HEAD},available,gap_minutes\n" + LINE.format(kind="x").replace("16.0", "3,10")
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(SourceFileError, match="'gap_minutes' is not in seconds"):
        read(Tabular(), path, map={"gap_seconds": "gap_minutes"})


@pytest.mark.parametrize(
    ("heading", "usable"),
    [
        ("time (UTC)", True),
        ("time_utc+00:00", True),
        ("time (PST)", False),
        ("local_time", False),
        ("time (UTC+8)", False),
        ("time GMT-5", False),
        ("time_+05:30", False),
        ("time (Asia/Shanghai)", False),
        ("US/Eastern time", False),
        ("beijing_time", False),
    ],
)
def test_times_of_a_zone_in_their_heading_are_not_utc(tmp_path, heading, usable):
    text = f"{HEAD},spot_price\n".replace("timestamp", heading) + LINE.format(kind="x").replace("00Z", "00")
    found = read(Tabular(), write(tmp_path / "a.csv", text + text.splitlines()[1].replace("00,", "00+01:00,") + "\n"),
                 map={"timestamp": heading})  # fmt: skip
    assert len(found["price"]) == 1 + usable


@pytest.mark.parametrize(("unit", "text"), [("epoch_ms", "1772323200"), ("epoch_s", "1772323200000")])
def test_times_since_1970_of_another_unit_than_stated_are_set_aside(tmp_path, unit, text):
    lines = [
        LINE.format(kind="x").replace("2026-03-01T00:00:00Z", value)
        for value in (text, "1772323200", "1772323200000")
    ]
    path = write(tmp_path / "a.csv", f"{HEAD},spot_price\n" + "".join(lines[:1]))
    good = write(tmp_path / "b.csv", f"{HEAD},spot_price\n" + "".join(lines))
    with open_store(":memory:") as store:
        assert list(ingest(store, "tabular", path, time=unit).reasons) == ["observed_at is not a time"]
        assert ingest(store, "tabular", good, time=unit).added == 1
        assert store.execute("SELECT epoch(observed_at) FROM price") == [(1772323200.0,)]


def test_a_file_of_parquet_is_read_by_its_headings_too(tmp_path):
    path = tmp_path / "p.parquet"
    line = dict(
        zip([*HEAD.split(","), "usd_per_month"], LINE.format(kind="x").strip().split(","), strict=True)
    )
    pd.DataFrame([line]).to_parquet(path)
    assert read(Tabular(), path, map={"price": "usd_per_month"})["price"]["unit"].tolist() == ["per month"]


@pytest.mark.parametrize(("heading", "usable", "other"), [
    ("utc_offset", 0, 8), ("line_item_usage_amount", 1.0, 24.0), ("reserved", 0, 1), ("is_on_demand", False, True),
    ("vcpus", 8, None),
])  # fmt: skip
def test_numbers_of_parquet_that_count_by_their_name_are_read(tmp_path, heading, usable, other):
    path = tmp_path / "p.parquet"
    names = [*HEAD.split(","), "cost", heading]
    line = LINE.format(kind="x").replace("00Z", "00").strip().split(",")
    values = [usable] if other is None else [usable, other]
    pd.DataFrame([[*line, value] for value in values], columns=names).to_parquet(path)
    with open_store(":memory:") as store:
        done = ingest(store, "tabular", path, map={"price": "cost"})
    assert (done.added, done.rejected) == (1, len(values) - 1)


BILL = "Start,UsageType,zone,region,type,UsageAmount,UnblendedRate,UnblendedCost\n" + "".join(
    f"2026-03-01T0{hour}:00:00Z,{use}:p4d.24xlarge,us-east-1a,us-east-1,p4d.24xlarge,{amount},{rate},{cost}\n"
    for hour, use, amount, rate, cost in [
        (0, "SpotUsage", 0.5, 9.83, 4.915), (1, "BoxUsage", 1, 21.9, 21.9), (2, "USW2-SpotUsage", 1, 9.9, 9.9),
    ]
)  # fmt: skip


@pytest.mark.parametrize(("heading", "prices", "reasons"), [
    ("UnblendedRate", [9.83, 9.9], {"mode is no spot instance": 1}),
    ("UnblendedCost", [9.9], {"mode is no spot instance": 1, "unit is not per instance and hour": 1}),
])  # fmt: skip
def test_a_bill_has_spot_rates_and_costs_for_an_amount_of_use(tmp_path, heading, prices, reasons):
    words = {"timestamp": "Start", "price": heading, "instance_type": "type"}
    with open_store(":memory:") as store:
        done = ingest(store, "tabular", write(tmp_path / "b.csv", BILL), map=words, provider="aws")
        assert store.execute("SELECT list(price_usd ORDER BY price_usd) FROM price") == [(prices,)]
    assert dict(done.reasons) == reasons


@pytest.mark.parametrize(
    ("kind", "gpus", "usable"), [("gpu_8x_h100", "8", 0), ("gpu_1x_h100", "1", 1), ("node", "4", 0)]
)
def test_a_count_of_gpus_is_no_count_of_instances(tmp_path, kind, gpus, usable):
    text = f"{HEAD},free_gpus,gpu_count\n" + LINE.format(kind=kind).replace("16.0", f"16,{gpus}")
    rest = LINE.format(kind="cpu").replace("16.0", "3,")
    with open_store(":memory:") as store:
        done = ingest(
            store, "tabular", write(tmp_path / "a.csv", text + rest), map={"available": "free_gpus"}
        )
    assert done.added == 1 + usable
