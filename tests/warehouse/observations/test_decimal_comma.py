"""Files with decimal commas: a number such as 1.852 may be 1852 there (M1.2)."""

import json

import pytest
from source_files import write

from slackwater.warehouse.observations import Bounds, ingest
from slackwater.warehouse.store.connection import open_store

WIDE = Bounds(price_times_on_demand=1e6)
HEAD = "provider;region;zone;instance_type;timestamp;"
PLACE = "acme;eu;a;box;2026-03-05T{hour:02}:00Z;"


def table(folder, column, *numbers, other="", quoted=False):
    """Return the path of a table with a number per row; ``other``: a further column, with the same price in every row."""
    head = f"{HEAD}{column}" + (f";{other}" if other else "")
    rows = [PLACE.format(hour=hour) + number + (";1" if other else "") for hour, number in enumerate(numbers)]
    text = "\n".join([head, *rows, ""])
    if quoted:
        text = "\n".join(
            ",".join(f'"{field}"' if "," in field else field for field in row.split(";"))
            for row in text.split("\n")
        )
    return write(folder / "t.csv", text)


def values(store, kind, column):
    return [value for (value,) in store.execute(f"SELECT {column} FROM {kind} ORDER BY observed_at") if value]


@pytest.mark.parametrize(
    ("kind", "column", "named", "other"),
    [
        ("price", "price_usd", "spot_price", ""),
        ("price", "on_demand_usd", "on_demand_price", "spot_price"),
        ("availability", "available", "available", ""),
        ("availability", "capacity", "capacity", "available"),
        ("availability", "gap_seconds", "gap_seconds", "available"),
    ],
)
@pytest.mark.parametrize("quoted", [False, True])
def test_three_digits_after_a_point_are_refused_where_another_number_has_a_decimal_comma(
    tmp_path, kind, column, named, other, quoted
):
    path = table(tmp_path, named, "2.000", "8,52", "3", "2.50", quoted=quoted, other=other)
    with open_store(":memory:") as store:
        done = ingest(store, "tabular", path)
        assert done.added + done.rejected == 4
        assert any(reason.startswith(f"{column} may mean thousands") for reason in done.reasons)
        assert set(values(store, kind, column)) <= {2.5, 3}


@pytest.mark.parametrize("commas", ["1,234.50", "1,234", "12,345,678", ""])
def test_commas_between_thousands_say_nothing_of_the_point(tmp_path, commas):
    with open_store(":memory:") as store:
        ingest(store, "tabular", table(tmp_path, "spot_price", "1.852", commas))
        assert values(store, "price", "price_usd") == [1.852]


@pytest.mark.parametrize("number", ["0.918", "1.85", "1.8520", "1852", "1234.567"])
def test_a_number_that_is_no_thousands_stays_beside_decimal_commas(tmp_path, number):
    with open_store(":memory:") as store:
        ingest(store, "tabular", table(tmp_path, "spot_price", number, "8,52"), bounds=WIDE)
        assert values(store, "price", "price_usd") == [float(number)]


@pytest.mark.parametrize(
    ("decimal", "numbers", "read"),
    [
        (",", ["8,52", "1.852", "1.234,5", "1 234,5", "7", "1.85"], [8.52, 1852, 1234.5, 1234.5, 7]),
        (".", ["1.852", "1,234.50", "1'234.5", "7", "8,52"], [1.852, 1234.5, 1234.5, 7]),
    ],
)
def test_the_stated_decimal_separator_decides(tmp_path, decimal, numbers, read):
    with open_store(":memory:") as store:
        path = table(tmp_path, "spot_price", *numbers)
        done = ingest(store, "tabular", path, bounds=WIDE, decimal=decimal)
        assert values(store, "price", "price_usd") == read
        assert done.reasons == {"... is no number with the stated decimal separator": 1}


@pytest.mark.parametrize("form", ["csv", "text", "json"])
def test_histories_of_aws_are_read_by_the_same_rule(tmp_path, form):
    names = ["AvailabilityZone", "InstanceType", "ProductDescription", "SpotPrice", "Timestamp"]
    rows = [
        ["us-east-1a", "p4d.24xlarge", "Linux/UNIX", usd, f"2026-03-05T0{hour}:00:00Z"]
        for hour, usd in enumerate(["9.831", "8,52", "9.83"])
    ]
    text = {
        "csv": "\n".join(";".join(row) for row in [names, *rows]),
        "text": "\n".join("\t".join(row) for row in rows),
        "json": json.dumps([dict(zip(names, row, strict=True)) for row in rows]),
    }[form]
    with open_store(":memory:") as store:
        done = ingest(store, "aws", write(tmp_path / "history", text + "\n"))
        assert (done.added, done.rejected) == (1, 2)
        assert values(store, "price", "price_usd") == [9.83]


def test_the_rule_holds_across_the_parts_in_which_a_file_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("slackwater.warehouse.observations.STAGED_BYTES", 1)
    monkeypatch.setattr("slackwater.warehouse.sources.files.reading._BLOCK_BYTES", 200)
    path = table(tmp_path, "spot_price", *["1.852"] * 20, "8,52")
    with open_store(":memory:") as store:
        done = ingest(store, "tabular", path)
        assert (done.added, done.rejected) == (0, 21)
        assert ingest(store, "tabular", path).rejected == 21
