"""M1.2, M1.3: a history on the slot grid from the rows known at a time, with marked gaps and stated assumptions."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from forms_kit import quick_first
from hypothesis import given, settings
from hypothesis import strategies as st
from storekit import DAY, HOUR, MARKET, MINUTE, T0, count_row, price_row, random_observations
from storekit import batch as make_batch

from slackwater.warehouse.asof import HistoryAssumptions, HistoryRequest, Reader, load_histories, load_history
from slackwater.warehouse.catalogue import Conventions, OnDemandTerms, known_conventions
from slackwater.warehouse.errors import MarketError, SettingsError
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows, record_assumptions
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_store

HERE = Market(**MARKET)
STEP = 30 * MINUTE
END = T0 + 2 * DAY


def read(store, market=HERE, *, end=END, step=STEP, known_at=None, **options):
    return load_history(store, market, end=end, step=step, known_at=known_at or end, **options)


def add(store, *rows, known_at=None):
    kinds = {
        "price": [r for r in rows if "price_usd" in r],
        "availability": [r for r in rows if "available" in r],
    }
    batches = [make_batch(kind, found) for kind, found in kinds.items() if found]
    return append(store, batches, source="t", known_at=known_at)


def alive(*, hours=48, source="lab", every=HOUR, **other):
    """Add a market with a price each 12 h and a count each hour."""
    rows = [
        count_row(T0 + k * every, k % 17, source=source, gap_seconds=every.total_seconds())
        for k in range(int(hours * HOUR / every))
    ]
    return rows + [
        price_row(T0 + k * HOUR, 1.0 + k / 100, source=source, on_demand_usd=3.06)
        for k in range(0, hours, 12)
    ]


def equal(one, other):
    pd.testing.assert_frame_equal(one.frame, other.frame)
    fields = (
        "known_at",
        "on_demand_usd",
        "capacity",
        "capacity_stated",
        "real_clock",
        "source",
        "assumptions",
    )
    assert [getattr(one, f) for f in fields] == [getattr(other, f) for f in fields]


def test_a_slot_holds_the_last_observation_at_or_before_its_start(store):
    add(store, *alive())
    add(store, count_row(T0 + 29 * MINUTE, 9), count_row(T0 + 90 * MINUTE, 11))
    history = read(store)
    assert history.slots[0] == T0
    assert history.slots[-1] == END
    assert len(history.slots) == 97
    assert history.available[:5].tolist() == [0, 9, 1, 11, 2]
    assert history.price[[0, 23, 24]].tolist() == [1.0, 1.0, 1.12]
    assert (history.on_demand_usd, history.capacity, history.capacity_stated) == (3.06, 16, True)
    assert history.assumptions == ()
    assert history.frame["known_at"].iloc[1] == T0 + 29 * MINUTE


def test_the_grid_is_aligned_to_the_epoch_and_ends_with_what_is_known(store):
    add(store, *alive())
    history = read(
        store, start=T0 + 7 * MINUTE, end=T0 + DAY + 50 * MINUTE, known_at=T0 + 5 * HOUR + 10 * MINUTE
    )
    assert history.slots[0] == T0 + 30 * MINUTE
    assert history.slots[-1] == T0 + 5 * HOUR
    odd = read(store, start=T0, step=7 * MINUTE, end=T0 + 2 * HOUR)
    assert all(slot.value % (7 * MINUTE).value == 0 for slot in odd.slots)
    with pytest.raises(MarketError, match="no slot"):
        read(store, start=END, end=T0)
    with pytest.raises(SettingsError, match="step"):
        read(store, step=pd.Timedelta(0))
    with pytest.raises(SettingsError, match="time zone"):
        read(store, end=END.tz_localize(None), known_at=END)


def test_old_values_are_gaps(store):
    add(store, *alive(hours=12))
    add(store, count_row(T0 + 30 * HOUR, 5, gap_seconds=3600))
    history = read(store, end=T0 + 40 * HOUR)
    counted = pd.Series(history.available, history.slots)
    assert counted[T0 + 14 * HOUR] == 11  # three gaps of an hour after the count at 11:00
    assert np.isnan(counted[T0 + 14 * HOUR + STEP : T0 + 30 * HOUR - STEP]).all()
    assert counted[T0 + 33 * HOUR] == 5
    assert np.isnan(counted[T0 + 33 * HOUR + STEP])
    priced = pd.Series(history.price, history.slots)
    assert np.isnan(priced[T0 + 36 * HOUR + STEP :]).all() or priced.isna().sum() == 0
    gaps = history.frame[history.frame["available"].isna() & history.frame["price_usd"].isna()]
    assert gaps["known_at"].isna().all()


def test_a_price_is_a_gap_after_36_hours(store):
    add(
        store,
        price_row(T0, 1.0),
        price_row(T0 + HOUR, 2.0),
        *[count_row(T0 + k * HOUR, 1) for k in range(72)],
    )
    end = T0 + 50 * HOUR
    priced = pd.Series(read(store, end=end).price, read(store, end=end).slots)
    assert priced[T0 + 37 * HOUR] == 2.0
    assert np.isnan(priced[T0 + 37 * HOUR + STEP :]).all()
    slow = read(store, end=T0 + 10 * DAY, step=5 * DAY, start=T0)
    assert np.isfinite(slow.price[:1]).all()


def test_revisions_are_seen_when_they_are_known(store):
    add(store, *alive(hours=6))
    add(store, count_row(T0 + HOUR, 13, known_at=T0 + 4 * HOUR))
    slot = T0 + HOUR
    assert read(store, end=T0 + 3 * HOUR).frame.loc[slot, "available"] == 1
    late = read(store, end=T0 + 5 * HOUR)
    assert late.frame.loc[slot, "available"] == 13
    assert late.frame.loc[slot, "known_at"] == T0 + 4 * HOUR


def test_capacity_is_stated_or_the_largest_count_known(store):
    rows = [count_row(T0 + k * HOUR, n, capacity=None) for k, n in enumerate([0, 3, 7, 5])]
    add(store, *rows, price_row(T0, 1.0, on_demand_usd=3.0))
    early, late = read(store, end=T0 + HOUR), read(store, end=T0 + 3 * HOUR)
    assert (early.capacity, early.capacity_stated, late.capacity) == (3, False, 7)
    assert read(store, end=T0).capacity == 1


def slow_twin(rows, grid, known_at, age, column):
    """Apply the rule of M1.3 row by row."""
    values = []
    for slot in grid:
        best = None
        for row in rows:
            known = row["known_at"] if row["known_at"] is not None else row["observed_at"]
            if row["observed_at"] <= slot and known <= known_at:
                rank = (row["observed_at"], known)
                best = max(best, (rank, row[column])) if best else (rank, row[column])
        values.append(best[1] if best and slot - best[0][0] <= age else np.nan)
    return np.array(values, dtype=float)


@pytest.mark.parametrize("examples", quick_first([2, 30]))
def test_the_grid_equals_an_obvious_slow_twin(examples):
    @settings(max_examples=examples, deadline=None)
    @given(
        seed=st.integers(0, 10**6),
        step=st.sampled_from([5, 17, 60]),
        known=st.integers(60, 400),
        late=st.integers(0, 200),
    )
    def grid_and_twin(seed, step, known, late):
        """Rows learned after known_at, or never learned, change nothing (M4.9 for reads)."""
        rows = [row for _, row in random_observations(seed, size=50, sources=("a",)) if row["known_at"] > T0]
        rows += [
            price_row(T0, 1.0, source="a", known_at=T0, on_demand_usd=2.5),
            count_row(T0, 1, source="a", known_at=T0, capacity=None),
        ]
        known_at = T0 + known * MINUTE
        with open_store(":memory:") as store, open_store(":memory:") as past:
            add(store, *rows)
            add(past, *[row for row in rows if row["known_at"] <= known_at])
            future = price_row(
                T0 + late * MINUTE,
                77.0,
                source="a",
                known_at=known_at + max(late, 1) * MINUTE + DAY,
                on_demand_usd=99.0,
            )
            add(
                past,
                future,
                count_row(
                    T0 + late * MINUTE,
                    99_999,
                    source="a",
                    known_at=future["known_at"],
                    capacity=None,
                    gap_seconds=1,
                ),
            )
            options = {"start": T0, "end": known_at + HOUR, "known_at": known_at, "step": step * MINUTE}
            history = read(store, **options)
            equal(history, read(past, **options))
        grid = list(history.slots)
        assert T0 <= grid[0] < T0 + step * MINUTE
        assert known_at - step * MINUTE < grid[-1] <= known_at
        price_rows = [r for r in rows if "price_usd" in r]
        count_rows = [r for r in rows if "available" in r]
        age = max(30 * MINUTE, step * MINUTE)
        np.testing.assert_array_equal(
            history.price, slow_twin(price_rows, grid, known_at, 36 * HOUR, "price_usd")
        )
        np.testing.assert_array_equal(
            history.available, slow_twin(count_rows, grid, known_at, age, "available")
        )

    grid_and_twin()


def test_until_agrees_with_a_read_as_of_then(store):
    add(store, *alive())
    add(store, count_row(T0 + HOUR, 13, known_at=T0 + 20 * HOUR))
    then = T0 + 10 * HOUR
    cut, then_read = read(store).until(then).frame, read(store, end=then).frame
    lost = cut["available"].isna()
    assert lost.sum() == 2  # the two slots whose count was revised later: `until` can only lose slots
    pd.testing.assert_frame_equal(cut[~lost], then_read[~lost])
    assert not then_read["available"].isna().any()


def test_the_most_trusted_source_answers_and_sources_never_mix(store):
    add(
        store,
        *alive(source="b/x"),
        *[row | {"available": 15} for row in alive(source="a/y") if "available" in row],
    )
    assert read(store).source == "a/y"  # alphabetical without trust
    trusted = read(store, trust=["b/*"])
    assert (trusted.source, trusted.assumptions) == ("b/x", ())
    other = read(store)
    assert set(other.available) == {15.0}
    assert other.assumptions == ("price from another source: b/x",)
    assert other.synthetic
    assert read(store, source="b/x").available[2] == 1
    with pytest.raises(MarketError, match="a/y, b/x"):
        read(store, source="c")


def test_a_source_that_ended_long_before_does_not_answer(store):
    add(
        store,
        *alive(source="a", hours=3),
        *[r | {"observed_at": r["observed_at"] + 300 * DAY} for r in alive(source="b")],
    )
    assert read(store, start=T0 + 300 * DAY, end=T0 + 301 * DAY).source == "b"
    assert read(store, start=T0, end=T0 + HOUR).source == "a"
    stale = read(store, start=T0 + 100 * DAY, end=T0 + 101 * DAY)
    assert stale.source == "a"
    assert np.isnan(stale.available).all()


def test_products(store):
    base = [row for row in alive() if "available" in row]
    named = {"per GPU, min over offers": 2.0, "Windows": 3.0, "Linux/UNIX": 1.0, "A": 9.0}
    for asked in (["A", "Windows"], ["A", "per GPU, min over offers", "Windows"], list(named)):
        with open_store(":memory:") as fresh:
            add(
                fresh,
                *base,
                *[
                    price_row(T0 + k * DAY, named[p], product=p, on_demand_usd=4.0)
                    for p in asked
                    for k in (0, 1)
                ],
            )
            expected = {2: "A", 3: "per GPU, min over offers", 4: "Linux/UNIX"}[len(asked)]
            assert read(fresh).price[0] == named[expected]


def test_what_is_missing_is_named_with_the_option_that_supplies_it(store):
    with pytest.raises(MarketError, match="no observations known"):
        read(store)
    add(store, count_row(T0, 5))
    with pytest.raises(MarketError, match=r"counts but no price.*spot_share"):
        read(store)
    with open_store(":memory:") as other:
        add(other, price_row(T0, 1.0))
        with pytest.raises(MarketError, match=r"price but no counts.*always_available"):
            read(other)
        with pytest.raises(MarketError, match="no observations known"):
            read(other, end=T0 - DAY)


def test_assumed_prices(store):
    add(store, *[count_row(T0 + k * HOUR, 5) for k in range(49)])
    add(store, price_row(T0, 1.2, zone="us-west-2b", on_demand_usd=4.0))
    share = read(store, assumptions=HistoryAssumptions(spot_share=0.3))
    assert set(share.price) == {1.2}
    assert share.assumptions == (
        "price not observed: constant 1.2 USD, 30% of the on-demand price",
        "on-demand price 4 USD taken from aws/us-west-2/us-west-2b (lab)",
    )
    record_assumptions(store, share)
    record_assumptions(store, share)
    assert read_rows(store, "assumptions")["text"].tolist() == list(share.assumptions)


def test_assumed_counts(store):
    add(store, *[price_row(T0 + k * 12 * HOUR, 1.0 + k, on_demand_usd=4.0) for k in range(4)])
    history = read(store, assumptions=HistoryAssumptions(always_available=8))
    assert set(history.available) == {8.0}
    assert (history.capacity, history.capacity_stated) == (8, True)
    assert history.assumptions == ("counts not observed: up to 8 instances assumed",)
    assert history.frame["known_at"].iloc[0] == T0


def test_a_catalogue_price_is_held_and_said(store):
    add(store, *[count_row(T0 + k * HOUR, 5) for k in range(24 * 9)], price_row(T0, 2.5, on_demand_usd=10.0))
    history = read(store, end=T0 + 8 * DAY)
    assert set(history.price) == {2.5}
    assert history.assumptions == ("catalogue price held constant at 2.5 USD",)
    assert read(store, end=T0 + DAY).assumptions == ()  # no slot is older than 36 h yet
    add(store, price_row(T0 + 9 * DAY, 2.5))
    assert set(read(store, end=T0 + 10 * DAY).price) == {2.5}
    add(store, price_row(T0 + 9 * DAY + 5 * HOUR, 2.5))  # the price is repeated after all
    assert np.isnan(read(store, end=T0 + 8 * DAY, known_at=T0 + 10 * DAY).price[-1])
    assert set(read(store, end=T0 + 8 * DAY).price) == {2.5}


def test_a_price_read_at_every_probe_holds_while_the_probes_go_on():
    facts = Conventions(price_of_every_probe=("lab",))
    rows = [count_row(T0 + k * HOUR, 1, gap_seconds=3600) for k in range(100)]
    rows += [price_row(T0, 1.0, on_demand_usd=3.0), price_row(T0 + HOUR, 2.0)]
    with open_store(":memory:") as store:
        add(store, *rows)
        end = T0 + 160 * HOUR
        request = HistoryRequest(market=HERE, end=end, step=STEP, known_at=end)
        (history,) = load_histories(store, [request], reader=Reader(store, facts))
        priced = pd.Series(history.price, history.slots)
        assert (priced[T0 + HOUR : T0 + 102 * HOUR] == 2.0).all()
        assert priced[T0 + 103 * HOUR :].isna().all()
        assert history.assumptions == ()
        assert history.frame.loc[T0 + 50 * HOUR, "known_at"] == T0 + 50 * HOUR


def test_where_the_on_demand_price_comes_from(store):
    def on_demand(**options):
        history = read(store, assumptions=HistoryAssumptions(spot_share=0.3, **options))
        return history.on_demand_usd, history.assumptions[-1]

    add(store, count_row(T0, 1))
    listed = read(store, assumptions=HistoryAssumptions(spot_share=0.3))
    assert (listed.on_demand_usd, listed.on_demand.kind) == (3.06, "catalogue")
    assert listed.on_demand.words.startswith("list price in us-west-2, read 2026")
    assert (
        len(listed.assumptions) == 1
    )  # the ratio of spot to list price; the list price itself is no spot price
    assert on_demand(on_demand_usd=5.0) == (5.0, "on-demand price assumed to be 5 USD")
    add(store, price_row(T0, 1.0, region="eu", zone="eu-1", on_demand_usd=3.5))
    assert on_demand() == (3.5, "on-demand price 3.5 USD taken from aws/eu/eu-1 (lab)")
    add(store, price_row(T0, 1.0, zone="us-west-2b", on_demand_usd=3.2, source="z"))
    assert on_demand()[0] == 3.2
    add(store, price_row(T0, 1.0))
    assert on_demand()[0] == 3.2
    add(store, price_row(T0 + HOUR, 1.0, on_demand_usd=3.1), price_row(T0 + 2 * HOUR, 1.0, on_demand_usd=3.3))
    assert read(store).on_demand_usd == 3.3
    assert read(store, end=T0 + HOUR).on_demand_usd == 3.1
    assert read(store, end=T0 + HOUR).assumptions == ()
    assert read(store, end=T0 + HOUR).on_demand.kind == "observed"


def test_terms_of_the_job_go_before_those_of_the_settings_and_any_price(store):
    add(store, count_row(T0, 1), price_row(T0, 1.0, on_demand_usd=3.1))
    job = OnDemandTerms(market="aws/*/*/p3.2xlarge", usd=7.0, stated_in="job")
    settings = OnDemandTerms(market="aws/us-west-2/*/*", usd=6.0, stated_in="settings")
    other = OnDemandTerms(market="gcp/*/*/*", usd=1.0, stated_in="job")

    def on_demand(*terms):
        request = HistoryRequest(market=HERE, end=T0, step=STEP, known_at=T0, on_demand=terms)
        (history,) = load_histories(store, [request])
        return history.on_demand_usd, str(history.on_demand), history.assumptions

    assert on_demand(other, job, settings) == (7.0, "job", ())
    assert on_demand(other, settings) == (6.0, "settings", ())
    assert on_demand(other) == (3.1, "observed", ())
    usd, origin, _ = on_demand(replace(settings, usd=None))
    assert (origin, usd) == ("not sold: settings", pytest.approx(1.0 / 0.3))


def test_an_on_demand_price_of_windows_never_answers(store):
    add(store, count_row(T0, 1), price_row(T0, 1.0))
    add(store, price_row(T0, 1.0, zone="us-west-2b", product="Windows", on_demand_usd=9.0))
    assert read(store).on_demand_usd == 3.06
    add(store, price_row(T0, 1.0, region="eu", zone="eu-1", on_demand_usd=3.5))
    assert read(store).on_demand_usd == 3.5


def test_an_unlisted_type_has_a_stand_in_that_is_named_unknown(store):
    kind = {"instance_type": "homemade"}
    market = Market(**(MARKET | kind))
    add(store, *[count_row(T0 + k * HOUR, 1, **kind) for k in range(9)])
    with pytest.raises(MarketError, match="no on-demand price"):
        read(store, market, assumptions=HistoryAssumptions(spot_share=0.3))
    add(
        store,
        price_row(T0, 1.0, **kind),
        price_row(T0 + HOUR, 4.0, **kind),
        price_row(T0 + 5 * HOUR, 9.0, **kind),
    )
    history = read(store, market, end=T0 + 2 * HOUR)
    assert history.on_demand_usd == pytest.approx(4.0 / 0.3)
    assert not history.on_demand.known
    assert history.assumptions == (
        "on-demand price unknown: 13.3333 USD assumed, the newest spot price / 0.3",
    )
    assert "state on_demand_usd" in history.on_demand_note
    add(
        store, price_row(T0 + 2 * HOUR, 0.5, **kind)
    )  # a dip: the substitute stays above every observed spot price
    assert read(store, market, end=T0 + 2 * HOUR).on_demand_usd == 4.0


def test_clocks_of_sources(store):
    facts = known_conventions()
    assert not facts.real_clock("skypilot-org/spot-traces:availability/1-node/aws-10-26-2022")
    assert not facts.real_clock("MaoZiming/spothedge_ae:data/GCP1")
    assert not facts.real_clock("uclasystem/bamboo:traces/p3-trace.csv")
    assert facts.real_clock("uclasystem/bamboo:traces/gcloud/v100x1-east1c.txt")
    assert facts.real_clock("andylizf/skynomad-artifact:v100")
    add(store, *alive(source="MaoZiming/x"))
    assert not read(store).real_clock


def test_undated_traces_at_1970_are_read_like_any_other(store):
    origin = pd.Timestamp(0, tz="UTC")
    moved = [row | {"observed_at": row["observed_at"] - (T0 - origin)} for row in alive()]
    add(store, *moved)
    history = read(store, end=origin + DAY)
    assert history.slots[0] == origin
    assert not np.isnan(history.available).any()


def test_the_list_of_markets(store):
    add(
        store,
        *alive(),
        price_row(T0, 1.0, zone="us-west-2b", product="Windows"),
        price_row(T0, 1.0, zone="us-west-2b"),
    )
    add(store, count_row(T0 + 9 * DAY, 3, zone="us-west-2c", capacity=None, source="MaoZiming/x"))
    listed = list_markets(store).set_index("market")
    assert listed["missing"].tolist() == ["", "counts, on-demand price", "price, on-demand price"]
    first = listed.loc[HERE.key]
    assert (first["capacity"], first["gap_seconds"], first["on_demand_usd"], first["count_rows"]) == (
        16,
        3600,
        3.06,
        48,
    )
    assert first["last_observed"] == T0 + 47 * HOUR
    assert listed["products"].tolist() == ["Linux/UNIX", "Linux/UNIX; Windows", ""]
    assert listed["real_clock"].tolist() == [True, True, False]
    assert not listed.iloc[2]["capacity_stated"]
    assert len(list_markets(store, known_at=T0 + DAY)) == 2
    assert list_markets(store, known_at=T0 + DAY)["last_observed"].iloc[0] == T0 + DAY
    assert list_markets(store, known_at=T0 - DAY).empty


def test_a_gap_that_is_not_stated_is_measured_and_not_invented(store):
    add(store, count_row(T0, 4, gap_seconds=None))
    assert list_markets(store)["gap_seconds"].isna().all()
    add(store, count_row(T0 + HOUR, 4, gap_seconds=None))
    assert list_markets(store)["gap_seconds"].tolist() == [3600.0]
