"""M1.2: histories read together equal histories read separately."""

import numpy as np
import pandas as pd
import pytest
from storekit import DAY, HOUR, MARKET, MINUTE, T0, batch, count_row, price_row

from slackwater.warehouse.asof import HistoryAssumptions, HistoryRequest, load_histories, load_history
from slackwater.warehouse.errors import MarketError, SettingsError
from slackwater.warehouse.history import Market
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_store

HERE = Market(**MARKET)
FIELDS = HistoryRequest.__slots__


def place(zone):
    return {"zone": zone}


@pytest.fixture
def store():
    """Return a store with four zones: frequently probed, irregular with revisions, with a catalogue price, with prices only."""
    rng = np.random.default_rng(0)
    prices, counts = [], []
    for i, zone in enumerate(("us-west-2a", "us-west-2b", "us-west-2c")):
        at = T0
        for k in range(150):
            at += MINUTE * (10 if i != 1 else int(rng.integers(3, 90)))
            counts.append(count_row(at, int(rng.integers(0, 17)), **place(zone)))
            if i != 2 and k % 7 == 0:
                prices.append(price_row(at, 1 + float(rng.integers(9)), on_demand_usd=3.0 + i, **place(zone)))
    prices.append(price_row(T0, 0.7, **place("us-west-2c")))
    prices += [price_row(T0 + k * 5 * HOUR, 1.0 + k % 3, **place("us-west-2d")) for k in range(6)]
    with open_store(":memory:") as opened:
        append(opened, [batch("price", prices), batch("availability", counts)], source="t")
        yield opened


def request(zone, **other):
    market = Market(**(MARKET | place(zone)))
    values = {"market": market, "end": T0 + DAY, "step": 30 * MINUTE, "known_at": T0 + 2 * DAY}
    return HistoryRequest(**(values | other))


def test_they_are_the_histories_read_one_by_one(store):
    requests = [
        request("us-west-2a", within=True),
        request("us-west-2b", start=T0 + 3 * HOUR),
        request("us-west-2a", end=T0 + 9 * HOUR, known_at=T0 + 10 * HOUR, within=True),
        request("us-west-2c", step=HOUR, end=T0 + 2 * DAY),
        request("us-west-2c", assumptions=HistoryAssumptions(spot_share=0.4), end=T0 + 20 * HOUR),
        request("us-west-2d", assumptions=HistoryAssumptions(always_available=4)),
        request("us-west-2b", step=15 * MINUTE, within=True),
        request("us-west-2a", within=True),
    ]
    together = load_histories(store, requests)
    for asked, found in zip(requests, together, strict=True):
        values = {name: getattr(asked, name) for name in FIELDS if name != "market"}
        alone = load_history(store, asked.market, **values)
        pd.testing.assert_frame_equal(alone.frame, found.frame)
        assert (alone.within is None) == (found.within is None)
        if alone.within is not None:
            assert np.array_equal(alone.within, found.within, equal_nan=True)
        for name in ("known_at", "on_demand_usd", "capacity", "capacity_stated", "source", "assumptions"):
            assert getattr(alone, name) == getattr(found, name), name
    assert together[0].within.shape[1] == 2
    assert any("held constant" in words for words in together[3].assumptions)
    assert load_histories(store, []) == []


def test_it_takes_a_few_statements_however_many_there_are(store, monkeypatch):
    asked = []
    for name in ("execute", "arrays"):
        own = getattr(type(store), name)
        monkeypatch.setattr(
            type(store), name, lambda self, *given, own=own: (asked.append(given), own(self, *given))[1]
        )
    load_histories(store, [request("us-west-2a", within=True), request("us-west-2b", within=True)])
    assert len(asked) == 3


def test_the_first_that_cannot_be_read_is_said(store):
    with pytest.raises(MarketError, match="us-west-2x"):
        load_histories(store, [request("us-west-2a"), request("us-west-2x")])
    with pytest.raises(MarketError, match="has a price but no counts"):
        load_histories(store, [request("us-west-2d")])
    with pytest.raises(SettingsError, match="step"):
        load_histories(store, [request("us-west-2a", step=pd.Timedelta(0))])
