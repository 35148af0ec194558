"""M1.2: at each time a moving reader returns the same as a new read at that time."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from forms_kit import quick_first
from storekit import HOUR, MARKET, MINUTE, T0, batch, count_row, price_row

from slackwater.warehouse.asof import HistoryAssumptions, HistoryRequest, MovingReader, Span, load_histories
from slackwater.warehouse.errors import MarketError, SettingsError
from slackwater.warehouse.history import Market
from slackwater.warehouse.listing import list_markets, list_markets_at
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_store

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c", "us-west-2d", "us-west-2e")
SPAN = Span(first=T0 + 20 * HOUR, last=T0 + 23 * HOUR, step=30 * MINUTE, since=T0 + 10 * HOUR)


def rows(rng, zone, kind):
    """Return a day and a half of counts and prices of one zone; ``kind`` names its irregularity."""
    counts, prices = [], []
    at = T0
    for k in range(190):
        at += MINUTE * (10 if kind != "irregular" else int(rng.integers(3, 50)))
        own = {"zone": zone}
        if kind == "late" and rng.random() < 0.1:
            own["known_at"] = at + int(rng.integers(1, 300)) * MINUTE
        stated = {"capacity": None, "gap_seconds": None} if kind in ("irregular", "unstated") else {}
        counts.append(count_row(at, int(rng.integers(0, 17)), **own, **stated))
        if kind == "revised" and rng.random() < 0.1:
            counts.append(count_row(at, 3, **{**own, "known_at": at + int(rng.integers(30, 400)) * MINUTE}))
        if kind != "no price" and k % 9 == 0:
            prices.append(price_row(at, 1 + float(rng.integers(9)), on_demand_usd=3.0 + k // 50, **own))
    return batch("availability", counts), batch("price", prices) if prices else None


@pytest.fixture(scope="module", params=[0, pytest.param(1, marks=pytest.mark.slow)])
def store(request):
    """Return a store that tests only read."""
    rng = np.random.default_rng(request.param)
    kinds = ("plain", "irregular", "late", "revised", "no price")
    with open_store(":memory:") as opened:
        for zone, kind in zip(ZONES, rng.permutation(kinds), strict=True):
            made = rows(rng, zone, kind)
            append(opened, [one for one in made if one is not None], source="t")
        yield opened


def asked(zone, at, start, within):
    return HistoryRequest(
        market=Market(**(MARKET | {"zone": zone})), start=start, end=at, step=30 * MINUTE, known_at=at,
        source="lab", assumptions=HistoryAssumptions(spot_share=0.3), within=within,
    )  # fmt: skip


def same(a, b):
    pd.testing.assert_frame_equal(a.frame, b.frame, check_exact=True)
    for name in (
        "market",
        "known_at",
        "on_demand_usd",
        "capacity",
        "capacity_stated",
        "assumptions",
        "source",
    ):
        assert getattr(a, name) == getattr(b, name)
    assert (a.within is None) == (b.within is None)
    if a.within is not None:
        np.testing.assert_array_equal(a.within, b.within)


@pytest.mark.parametrize("every", quick_first([3, 1]))
def test_every_history_is_the_one_read_at_its_time(store, every):
    reader = MovingReader(store, SPAN)
    for at in SPAN.times()[::every]:
        for start in (at, T0 + 15 * HOUR, T0 + 2 * HOUR):
            wanted = [asked(zone, at, start, within) for zone in ZONES for within in (False, True)]
            for a, b in zip(
                load_histories(store, wanted, reader=reader), load_histories(store, wanted), strict=True
            ):
                same(a, b)
    for end in (SPAN.first, SPAN.first - HOUR):  # earlier than the time at which it is known
        earlier = [replace(asked(zone, SPAN.last, T0 + 15 * HOUR, False), end=end) for zone in ZONES]
        for a, b in zip(
            load_histories(store, earlier, reader=reader), load_histories(store, earlier), strict=True
        ):
            same(a, b)


def test_what_was_learned_late_is_read_time_by_time(store):
    """Exactly the series with late or revised rows are detected."""
    late = MovingReader(store, SPAN)._late
    kept = {sid for (sid,) in store.execute("SELECT DISTINCT sid FROM series")}
    assert late
    assert late < kept


def test_a_punctual_market_asks_the_store_for_nothing_more(store, monkeypatch):
    reader = MovingReader(store, SPAN)
    fitting = []
    for zone in ZONES:
        load_histories(store, [asked(zone, SPAN.first, T0 + 10 * HOUR, True)], reader=reader)
        sids = store.execute("SELECT sid FROM series JOIN markets USING (mid) WHERE zone = ?", [zone])
        stated = store.execute(
            "SELECT count(gap_seconds) FROM availability JOIN series USING (sid) JOIN markets USING (mid) WHERE zone = ?",
            [zone],
        )[0][0]  # without a stated gap the median gap moves, and with it the maximum age
        if stated and not {sid for (sid,) in sids} & reader._late:
            fitting.append(zone)
    assert fitting

    def refuse(*_):
        raise AssertionError("asked again")

    monkeypatch.setattr(type(store), "arrays", refuse)
    for at in SPAN.times():
        load_histories(store, [asked(zone, at, T0 + 12 * HOUR, True) for zone in fitting], reader=reader)


def test_a_time_before_anything_was_seen_is_refused_as_ever():
    with open_store(":memory:") as store:
        append(store, [batch("availability", [count_row(T0 + 22 * HOUR, 3)])], source="t")
        reader = MovingReader(store, SPAN)
        with pytest.raises(MarketError, match="no observations"):
            load_histories(store, [asked("us-west-2a", SPAN.first, T0, False)], reader=reader)
        assert load_histories(store, [asked("us-west-2a", SPAN.last, T0, False)], reader=reader)


def test_a_span_that_does_not_come_out_even_is_refused():
    with pytest.raises(SettingsError, match="whole positive steps"):
        Span(first=T0, last=T0 + 100 * MINUTE, step=HOUR, since=T0)


def test_listings_at_many_times_are_those_of_each(store):
    times = SPAN.times()
    found = list_markets_at(store, times)
    assert list(found) == list(times)
    for at in times:
        pd.testing.assert_frame_equal(found[at], list_markets(store, known_at=at))
    before = list_markets_at(store, pd.DatetimeIndex([T0 - HOUR]))
    assert before[T0 - HOUR].empty
    assert len(found[times[-1]]) == len(ZONES)
    assert not found[times[0]].equals(found[times[-1]])


def test_a_gap_that_is_not_stated_is_measured_as_known_at_the_time():
    late = 3 * pd.Timedelta(seconds=1)
    with open_store(":memory:") as store:
        hourly = [count_row(T0 + k * HOUR + (k % 2) * late, 3, gap_seconds=None) for k in range(300)]
        stated = [count_row(T0 + k * HOUR, 3, zone="us-west-2b", gap_seconds=3600) for k in range(300)]
        append(store, [batch("availability", hourly + stated)], source="t")
        times = pd.date_range(T0, T0 + 300 * HOUR, freq="25h")
        for at, found in list_markets_at(store, times).items():
            pd.testing.assert_frame_equal(found, list_markets(store, known_at=at))
            gaps = dict(zip(found["zone"], found["gap_seconds"], strict=True))
            assert gaps.get("us-west-2b") == 3600
            assert pd.isna(gaps["us-west-2a"]) if at == T0 else gaps["us-west-2a"] == 3600
