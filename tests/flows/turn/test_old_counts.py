"""Markets with old counts among markets with prices only (M11.1)."""

import pandas as pd
import pytest
from command_kit import SMALL_JOB, call

from slackwater.flows.config import Settings
from slackwater.flows.places import find_market
from slackwater.warehouse.store.connection import open_reader

NOW = pd.Timestamp("2026-03-10T12:00Z")
PRICES = "provider,region,zone,instance_type,timestamp,spot_price_usd_per_hour"
COUNTS = "provider,region,zone,instance_type,timestamp,available"
JOB = SMALL_JOB.format(where='markets = ["acme/*/*/L4_x1"]')


def table(path, head, rows):
    lines = [f"acme,eu,{zone},L4_x1,{at.isoformat()},{value}" for zone, at, value in rows]
    path.write_text("\n".join([head, *lines, ""]))
    return path


@pytest.fixture
def filled(tmp_path):
    """Return a function that fills a warehouse: prices of two zones until now, and counts of zone a at hours before."""

    def fill(*hours_before):
        slots = pd.date_range(NOW - pd.Timedelta(days=1), NOW, freq="1h")
        prices = [(zone, at, usd) for at in slots for zone, usd in (("a", 0.31), ("b", 0.25))]
        counts = [("a", NOW - pd.Timedelta(hours=k), 4) for k in hours_before]
        db = ("--db", tmp_path / "w.duckdb")
        files = [table(tmp_path / "p.csv", PRICES, prices), table(tmp_path / "c.csv", COUNTS, counts)]
        assert call("ingest", "tabular", *files, *db).code == 0
        (tmp_path / "one.toml").write_text(JOB)
        return tmp_path / "one.toml", *db

    return fill


OLD = [range(48, 96, 24), [24], [10, 22, 34], [48 + k / 2 for k in range(200)], [7]]
NEW = [[0.5], [k / 2 for k in range(200)], [2, 4, 6], [1]]


@pytest.mark.parametrize("hours", OLD)
@pytest.mark.parametrize("when", [(), ("--at", NOW.isoformat())])
def test_old_counts_put_no_market_before_those_with_prices_only(filled, hours, when):
    job, *db = filled(*hours)
    rows = call("markets", "--for", job, *db, *when, "--json").value["markets"]
    assert [row["market"] for row in rows] == ["acme/eu/b/L4_x1", "acme/eu/a/L4_x1"]  # the cheaper first
    assert all("measured markets" in row["reason"] for row in rows)
    plan = call("plan", job, *db, *when)
    assert "Left out" not in plan.out


@pytest.mark.parametrize("hours", NEW)
@pytest.mark.parametrize("when", [(), ("--at", NOW.isoformat())])
def test_new_counts_are_not_mixed_with_prices_only_and_the_left_out_are_named(filled, hours, when):
    job, *db = filled(*hours)
    answer = call("markets", "--for", job, *db, *when)
    assert "acme/eu/b/L4_x1" in " ".join(answer.out.split()).partition("Left out")[2]
    (row,) = call("markets", "--for", job, *db, *when, "--json").value["markets"]
    assert row["market"] == "acme/eu/a/L4_x1"


def test_the_listing_has_the_times_of_counts_and_prices(filled):
    _, *db = filled(48, 72)
    first, other = call("markets", *db, "--json").value["markets"]
    assert pd.Timestamp(first["last_counted"]) == NOW - pd.Timedelta(hours=48)
    assert pd.Timestamp(first["first_counted"]) == NOW - pd.Timedelta(hours=72)
    assert pd.Timestamp(first["last_priced"]) == pd.Timestamp(first["last_observed"]) == NOW
    assert other["last_counted"] is None


@pytest.mark.parametrize(("hours_before", "source"), [(48, "prices"), (1, "counts")])
def test_a_market_of_two_sources_is_read_from_old_counts_only_if_nothing_is_newer(
    tmp_path, hours_before, source
):
    db = ("--db", tmp_path / "w.duckdb")
    slots = pd.date_range(NOW - pd.Timedelta(days=1), NOW, freq="1h")
    files = {
        "prices": table(tmp_path / "p.csv", PRICES, [("a", at, 0.31) for at in slots]),
        "counts": table(tmp_path / "c.csv", COUNTS, [("a", NOW - pd.Timedelta(hours=hours_before), 4)]),
    }
    for name, file in files.items():
        assert call("ingest", "tabular", file, "--set", f"source={name}", *db).code == 0
    with open_reader(tmp_path / "w.duckdb") as store:
        found = find_market(store, "acme/eu/a/L4_x1", at=NOW, settings=Settings())
    assert found.source == source
