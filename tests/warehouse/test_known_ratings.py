"""Ratings of markets as known at a time: their age, their zone or region, and the types that were scored together (M13.1)."""

import pandas as pd
import pytest

from slackwater.warehouse.history import Market, Ratings
from slackwater.warehouse.observations import append
from slackwater.warehouse.ratings import known_ratings
from slackwater.warehouse.sources.contract import batch_of
from slackwater.warehouse.store.connection import open_store

AT = pd.Timestamp("2026-01-05T12:00Z")
MARKET = Market.parse("aws/us-east-1/use1-az1/p5.48xlarge")


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "w.duckdb") as store:
        yield store


def rate(store, kind, value, *, hours_ago=1.0, zone="all", types="p5.48xlarge", known_ago=None):
    at = AT - pd.Timedelta(hours=hours_ago)
    known = at if known_ago is None else AT - pd.Timedelta(hours=known_ago)
    row = {
        "provider": "aws", "region": "us-east-1", "zone": zone, "instance_type": types, "source": f"aws-{kind}",
        "observed_at": at.to_pydatetime(), "known_at": known.to_pydatetime(), "available": value, "kind": kind,
    }  # fmt: skip
    assert append(store, [batch_of("availability", 1, row)], source=f"aws-{kind}").added == 1


def known(store, market=MARKET, at=AT):
    (found,) = known_ratings(store, [(market, at)])
    return found


def test_the_newest_rating_that_was_known_and_is_not_too_old(store):
    rate(store, "score", 3, hours_ago=5)
    rate(store, "score", 9, hours_ago=2)
    rate(store, "score", 1, hours_ago=1, known_ago=-1)  # known an hour later
    rate(store, "score", 2, hours_ago=-1)
    rate(store, "band", 1, hours_ago=24 * 59)
    assert known(store) == Ratings(score=9, scored_at=AT - pd.Timedelta("2h"), band=1)
    assert known(store, at=AT - pd.Timedelta("3h")).score == 3
    assert known(store, at=AT + pd.Timedelta("1h")).score == 2
    assert known(store, at=AT + pd.Timedelta("72h")) == Ratings()
    rate(store, "band", 2, hours_ago=24 * 70)
    assert known(store).band == 1


def test_a_zone_is_rated_by_itself_or_by_its_region(store):
    rate(store, "score", 2, zone="use1-az1", hours_ago=6)
    rate(store, "score", 8, zone="use1-az2")
    rate(store, "score", 5)
    zones = {
        zone: Market.parse(f"aws/us-east-1/{zone}/p5.48xlarge") for zone in ("use1-az2", "us-east-1a", "all")
    }
    found = known_ratings(store, [(MARKET, AT), *((market, AT) for market in zones.values())])
    assert [rated.score for rated in found] == [2, 8, 5, 5]
    assert known(store, Market.parse("aws/us-west-2/use1-az1/p5.48xlarge")) == Ratings()


def test_a_score_of_several_types_is_one_of_each(store):
    rate(store, "score", 4, types="p4d.24xlarge+p5.48xlarge")
    assert known(store).score == 4
    assert known(store, Market.parse("aws/us-east-1/use1-az1/p4d.24xlarge")).score == 4
    assert known(store, Market.parse("aws/us-east-1/use1-az1/p4.24xlarge")) == Ratings()


def test_other_numbers_and_counts_are_no_ratings(store):
    for kind, value in (("score", 0), ("score", 11), ("band", 5), ("probe", 3)):
        rate(store, kind, value, hours_ago=value + 1)
    assert known(store) == Ratings()
    assert known_ratings(store, []) == []
