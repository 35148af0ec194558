from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from forms_kit import quick_first
from source_files import DATA, options, read

from benchmarks import calibrate_simulated
from slackwater.warehouse.errors import SettingsError, SourceFileError
from slackwater.warehouse.sources.simulated import (
    BLOCK,
    PSEUDO_PATH,
    SimulatedSource,
    block_of,
    generate,
    sample_path,
    simulated_markets,
)

START = datetime(2026, 1, 5, tzinfo=UTC)
BLOCKS = range(700, 712)  # 12 blocks of 28 days: the sample for long-run figures
KEYS = [market.key for market in simulated_markets()]


def rows(batches):
    """Return {(kind, region, zone, type, time): value} of batches."""
    found = {}
    for batch in batches:
        for row in batch.table.to_pylist():
            value = row["available"] if batch.kind == "availability" else row["price_usd"]
            key = (batch.kind, row["region"], row["zone"], row["instance_type"], row["observed_at"])
            assert key not in found
            found[key] = value
    return found


def paths(key):
    market = next(m for m in simulated_markets() if m.key == key)
    return market, [sample_path(market, block, seed=7) for block in BLOCKS]


def test_the_markets_asked_for_are_there():
    markets = simulated_markets()
    kinds = pd.Series([m.instance_type for m in markets]).value_counts()
    assert kinds.to_dict() == {"h100": 3, "v100": 3, "a100": 1}
    assert {m.capacity for m in markets if m.instance_type != "a100"} == {16}
    assert next(m for m in markets if m.instance_type == "a100").capacity is None
    assert len(set(KEYS)) == 7


@pytest.mark.parametrize("key", quick_first(KEYS, 3))
def test_counts_match_what_was_measured(key):
    market, found = paths(key)
    values = np.concatenate([p.counts for p in found])
    full, minutes = market.counts["full"], market.counts["tick_minutes"]
    want = market.counts["measured"]
    got = calibrate_simulated.measured_counts(values, minutes, full)
    # The measured shares cover two to four weeks, in which a regime changes a few dozen times.
    assert got["share_zero"] == pytest.approx(want["share_zero"], abs=0.05)
    assert got["share_full"] == pytest.approx(want["share_full"], abs=0.05)
    assert got["mean"] == pytest.approx(want["mean"], abs=0.05 * full)
    assert got["mean_stay_minutes"] == pytest.approx(want["mean_stay_minutes"], rel=0.15)
    if want["share_zero"]:
        assert got["stay_at_zero_minutes"] == pytest.approx(want["stay_at_zero_minutes"], rel=0.2)
    if want["share_full"] > 0.01:
        assert got["stay_at_full_minutes"] == pytest.approx(want["stay_at_full_minutes"], rel=0.2)
    assert values.min() >= 0
    assert values.max() <= full


@pytest.mark.parametrize("key", quick_first(KEYS, 3))
def test_prices_match_what_was_measured(key):
    market, found = paths(key)
    prices = np.concatenate([p.prices for p in found])
    want = market.price["measured"]
    changes = sum(int((np.diff(p.prices) != 0).sum()) for p in found) / (len(found) * BLOCK.days)
    assert prices.mean() == pytest.approx(want["mean_usd"], rel=0.03)
    # A price correlated over weeks makes the spread of a year's paths uncertain by about a quarter.
    assert prices.std() / prices.mean() == pytest.approx(want["cv"], rel=0.35, abs=1e-12)
    assert changes == pytest.approx(want["changes_per_day"], rel=0.15)
    assert prices.min() >= round(market.price["floor_usd"], 4)
    assert prices.max() <= market.on_demand_usd


def test_regimes_show_scarce_and_plentiful_spells_not_noise():
    _, found = paths("west/west-a/v100")
    daily = np.concatenate([p.counts.reshape(BLOCK.days, -1).mean(axis=1) for p in found])
    shuffled = np.random.default_rng(1).permutation(np.concatenate([p.counts for p in found]))
    noise = shuffled.reshape(len(daily), -1).mean(axis=1)
    assert daily.std() > 5 * noise.std()


def test_the_same_seed_gives_the_same_rows_and_another_gives_others():
    end = START + timedelta(days=3)
    one, two = (rows(generate(START, end, seed=7)) for _ in range(2))
    assert one == two
    other = rows(generate(START, end, seed=8))
    counts = [k for k in one if k[0] == "availability"]
    assert sum(one[k] != other[k] for k in counts) > len(counts) / 10


@pytest.mark.parametrize("step", [5, 30, 60, 1440])
def test_a_later_run_extends_and_changes_nothing(step):
    # The range crosses a block boundary, where a path starts anew.
    boundary = datetime(1970, 1, 1, tzinfo=UTC) + (block_of(START) + 1) * BLOCK
    begin, middle, end = (boundary + timedelta(hours=h) for h in (-60, -7.5, 55))
    short = rows(generate(begin, middle, seed=3, step_minutes=step))
    long = rows(generate(begin, end, seed=3, step_minutes=step))
    later = rows(generate(middle, end, seed=3, step_minutes=step))
    assert short.items() <= long.items()
    assert later.items() <= long.items()
    new = [k for k in long if k not in short]
    assert new
    assert min(k[-1] for k in new) > middle
    assert set(long) == set(short) | set(later)


def test_times_of_pandas_and_other_zones_are_the_same_times():
    want = rows(generate(START, START + timedelta(days=1), seed=3))
    begin, end = pd.Timestamp(START).tz_convert("US/Pacific"), pd.Timestamp(START) + pd.Timedelta(days=1)
    assert rows(generate(begin, end, seed=3)) == want


def test_steps_see_one_path():
    fine = rows(generate(START, START + timedelta(days=2), seed=3, step_minutes=5))
    coarse = rows(generate(START, START + timedelta(days=2), seed=3, step_minutes=60))
    counts = {k: v for k, v in coarse.items() if k[0] == "availability"}
    assert len(counts) == 7 * 49
    assert all(fine[k] == v for k, v in counts.items())


def test_rows_carry_everything_a_market_needs():
    found = read(SimulatedSource(), PSEUDO_PATH, start="2026-01-05", end="2026-01-08T06:15", seed="9")
    counts, prices = found["availability"], found["price"]
    assert len(counts) == 7 * (3 * 48 + 13)
    for frame in (counts, prices):
        assert frame["provider"].unique().tolist() == ["simulated"]
        assert frame["source"].unique().tolist() == ["simulated:9"]
        assert (frame["known_at"] == frame["observed_at"]).all()
        assert not frame.duplicated(["region", "zone", "instance_type", "observed_at"]).any()
    assert counts["gap_seconds"].unique().tolist() == [1800]
    assert counts.groupby("instance_type")["kind"].first().to_dict() == {
        "a100": "offers",
        "h100": "probe",
        "v100": "probe",
    }
    assert (prices["on_demand_usd"] >= prices["price_usd"]).all()
    # On change, and at every midnight: four midnights in the range, and never an unchanged price in between.
    midnight = prices["observed_at"] == prices["observed_at"].dt.normalize()
    assert midnight.sum() == 7 * 4
    same = prices.groupby(["zone", "instance_type"])["price_usd"].diff().eq(0)
    assert not (same & ~midnight).any()


def test_it_says_that_it_is_simulated():
    assert SimulatedSource().files([]) == [PSEUDO_PATH] == SimulatedSource().files([Path("simulated:")])
    assert "simulated market (seed 11)" in SimulatedSource().assumptions(PSEUDO_PATH, options(seed="11"))[0]
    with pytest.raises(SourceFileError, match="reads no files"):
        SimulatedSource().files([Path("prices.csv")])


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "without a range"),
        ({"start": "2026-01-05"}, "without a range"),
        ({"start": "2026-01-05", "end": "2026-01-04"}, "range"),
        ({"start": "1969-01-05", "end": "2026-01-04"}, "range"),
        ({"start": "2026-01-05", "end": "2026-01-06", "step_minutes": "7"}, "step of 7 minutes"),
        ({"start": "2026-01-05", "end": "2026-01-06", "seed": "-1"}, "seed"),
        ({"start": "2026-01-05", "end": "2026-01-06", "sead": "1"}, "option 'sead'"),
    ],
)
def test_options_out_of_range_are_refused(given, found):
    with pytest.raises(SettingsError, match=found):
        SimulatedSource().read(PSEUDO_PATH, options(**given))
    with pytest.raises(SettingsError, match="range"):
        generate(START.replace(tzinfo=None), START, seed=1)


def test_the_parameters_are_those_of_the_open_data():
    if not (DATA / "availability.parquet").exists():
        pytest.skip(
            f"no availability.parquet below {DATA}: set SLACKWATER_DATA to the folder of the open data"
        )
    assert calibrate_simulated.text(DATA) == calibrate_simulated.TARGET.read_text(encoding="utf-8")
