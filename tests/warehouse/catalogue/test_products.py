"""M1.1: jobs are planned on Linux; prices of other products are never used, whatever their order or name."""

import itertools

import duckdb
import pandas as pd
import pytest
from storekit import DAY, HOUR, T0, count_row, counts, price_row, prices

from slackwater.warehouse.asof import HistoryAssumptions, load_history
from slackwater.warehouse.catalogue import planning_item, product_rank, rank_sql
from slackwater.warehouse.errors import MarketError
from slackwater.warehouse.history import Market
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_store

MARKET = Market.parse("aws/us-west-2/us-west-2a/p3.2xlarge")
OTHERS = [
    "Windows", "Windows (Amazon VPC)", "windows", "Red Hat Enterprise Linux", "RHEL", "SUSE Linux", "SLES", "Ubuntu Pro",
    "Linux with SQL Server", "on-demand", "Linux On-Demand", "reserved 1 year", "flex-start", "DWS calendar", "Low Priority",
]  # fmt: skip


def history(store, **assumed):
    return load_history(
        store, MARKET, end=T0 + HOUR, step=HOUR, known_at=T0 + DAY, assumptions=HistoryAssumptions(**assumed)
    )


@pytest.mark.parametrize("product", OTHERS)
def test_what_is_not_linux_on_spot_is_never_planned_on(product):
    assert product_rank(product) is None


@pytest.mark.parametrize(
    "products", [["Linux/UNIX", "Windows", "Linux/UNIX (Amazon VPC)"], ["b", "Linux/UNIX", "a"]]
)
def test_linux_is_planned_on_whatever_the_order(products):
    assert {planning_item(order, str) for order in itertools.permutations(products)} == {"Linux/UNIX"}


def test_of_several_unknown_names_none_is_taken():
    assert planning_item(["ours"], str) == "ours"
    assert planning_item(["ours", "Windows"], str) == "ours"
    assert planning_item(["ours", "theirs"], str) is None


def test_sql_and_python_rank_alike():
    names = [
        *OTHERS,
        "",
        "Linux/UNIX",
        "linux",
        "unspecified",
        "a name",
        "it's",
        "interruptible, min over offers",
    ]
    with duckdb.connect() as connection:
        found = connection.execute(
            f"SELECT {rank_sql('name')} FROM (SELECT unnest(?) AS name)", [names]
        ).fetchall()
    assert [rank for (rank,) in found] == [product_rank(name) for name in names]


@pytest.mark.parametrize("first", ["Linux/UNIX", "Windows"])
def test_the_on_demand_price_of_a_market_is_that_of_linux(first):
    rows = [
        price_row(T0, 0.7, product="Linux/UNIX", on_demand_usd=3.0),
        price_row(T0, 1.6, product="Windows", on_demand_usd=4.7),
        price_row(T0 + HOUR, 1.7, product="Windows", on_demand_usd=4.8),
    ]
    rows.sort(key=lambda row: row["product"] != first)
    with open_store(":memory:") as store:
        append(store, prices(*rows), source="t")
        (row,) = list_markets(store).to_dict("records")
        assert (row["on_demand_usd"], row["products"]) == (3.0, "Linux/UNIX; Windows")
        found = history(store, always_available=4)
        assert found.on_demand_usd == 3.0
        assert set(found.price) == {0.7}


def test_windows_alone_is_said_and_its_prices_are_used_nowhere():
    rows = [price_row(T0, 1.6, product="Windows", on_demand_usd=4.7)]
    with open_store(":memory:") as store:
        append(store, prices(*rows), source="t")
        (row,) = list_markets(store).to_dict("records")
        assert not row["has_price"]
        assert pd.isna(row["on_demand_usd"])
        assert row["missing"] == "Linux price (only Windows), counts, on-demand price"
        with pytest.raises(
            MarketError, match=r"no price that a job can be planned on \(only Windows; jobs run on Linux\)"
        ):
            history(store, always_available=4)
        append(store, counts(count_row(T0, 4), count_row(T0 + HOUR, 4)), source="t")
        with pytest.raises(MarketError, match=r"no price \(only Windows\)"):
            history(store)
        found = history(store, spot_share=0.5, on_demand_usd=3.0)
        assert set(found.price) == {1.5}  # relative to the stated on-demand price, not that of Windows
        assert any("only Windows" in words for words in found.assumptions)


def test_an_on_demand_price_of_windows_elsewhere_is_not_borrowed():
    rows = [
        price_row(T0, 0.7),
        price_row(T0, 1.6, zone="us-west-2b", product="Windows", on_demand_usd=4.7),
        price_row(T0, 0.8, zone="us-west-2c", on_demand_usd=3.2),
    ]
    with open_store(":memory:") as store:
        append(store, prices(*rows), source="t")
        assert history(store, always_available=4).on_demand_usd == 3.2


def test_counts_of_which_some_are_scores_are_counts():
    with open_store(":memory:") as store:
        append(store, counts(count_row(T0, 4), count_row(T0 + HOUR, 7, kind="score")), source="t")
        (row,) = list_markets(store).to_dict("records")
        assert row["has_counts"]
