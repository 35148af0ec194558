"""Scenarios of E1 (M7): cells, evenly used pairings, separate halves, records that end with the job."""

import numpy as np
import pandas as pd
import pytest

from slackwater.studies.trials.scenarios import (
    MOST_GAPS,
    WARM_SLOTS,
    Grid,
    Tape,
    aligned,
    draw_scenarios,
    moving_paths,
    peers_of,
    sample_and_hold,
    scenario_of,
    starts,
)
from slackwater.warehouse.errors import MarketError, SettingsError
from slackwater.warehouse.history import Market

STEP = pd.Timedelta(minutes=30)
FIRST = pd.Timestamp("2025-01-01T06:30:00Z")


def tape(
    values, *, variable="count", zone="a", kind="g", bound=16.0, first=FIRST, source="s", real_clock=True
):
    return Tape(
        variable=variable,
        market=Market(provider="p", region="r", zone=zone, instance_type=kind),
        source=source,
        values=np.asarray(values, dtype=float),
        bound=bound,
        first=first,
        step=STEP,
        real_clock=real_clock,
    )


def lab(slots=300, seed=0):
    rng = np.random.default_rng(seed)
    counts = [tape(rng.integers(0, 17, slots), zone=f"z{k}") for k in range(3)]
    counts.append(tape(rng.integers(0, 5, slots), zone="small", kind="h", bound=4.0))
    paths = [
        tape(rng.uniform(0.2, 0.9, slots + 40 * k), variable="price", zone=f"p{k}", bound=1.0, source="t")
        for k in range(4)
    ]
    return counts, paths


def test_a_grid_has_every_cell_once():
    cells = Grid().cells
    assert len(cells) == len(set(cells)) == 54
    assert {c.deadline_slots for c in cells} == {10, 20, 48}
    assert {c.mu_down for c in cells} == {0.95}


def test_sample_and_hold_takes_the_last_known_value_until_it_is_too_old():
    times = np.array(["2025-01-01T00:10", "2025-01-01T00:30", "2025-01-01T04:00"], dtype="datetime64[ns]")
    grid = np.arange(
        np.datetime64("2025-01-01T00:00", "ns"),
        np.datetime64("2025-01-01T05:00", "ns"),
        np.timedelta64(30, "m"),
    )
    held = sample_and_hold(times, np.array([1.0, 2.0, 3.0]), grid, max_age=np.timedelta64(60, "m"))
    assert np.isnan(held[0])  # nothing was known yet
    assert held[1:4].tolist() == [2.0, 2.0, 2.0]  # observed when the slot begins, then repeated for an hour
    assert np.isnan(held[4:8]).all()
    assert held[8:].tolist() == [3.0, 3.0]


def test_peers_are_the_other_series_of_the_kind_on_the_same_times():
    mine, late = tape(np.arange(6)), tape(np.arange(6) + 10, zone="b", first=FIRST + 2 * STEP)
    early = tape([7.0, 8.0, 9.0], zone="c", first=FIRST - STEP)
    foreign = tape(np.zeros(6), zone="d", kind="other")
    found = peers_of(mine, [mine, late, early, foreign])
    assert found.shape == (2, 6)
    assert found[0, 2:].tolist() == [10.0, 11.0, 12.0, 13.0]
    assert np.isnan(found[0, :2]).all()
    assert found[1, :2].tolist() == [8.0, 9.0]
    assert np.isnan(aligned(mine, tape([1.0], first=FIRST + 100 * STEP))).all()


@pytest.mark.parametrize("slots", [10, 48])
def test_jobs_begin_in_one_half_and_end_in_it(slots):
    series = tape(np.ones(301))
    test, train = starts(series, slots, "test"), starts(series, slots, "train")
    assert test.min() == series.half == 150
    assert test.max() + slots == 301
    assert train.min() == WARM_SLOTS
    assert train.max() + slots == series.half
    assert not len(starts(tape(np.ones(2 * slots - 2)), slots, "train"))


def test_a_job_is_not_laid_over_a_hole():
    values = np.ones(300)
    values[200:240] = np.nan
    at = starts(tape(values), 20, "test")
    holes = np.array([np.isnan(values[i : i + 20]).mean() for i in at])
    assert holes.max() <= MOST_GAPS
    assert 181 in at
    assert 182 not in at


def test_draws_use_every_join_about_equally_and_only_series_that_see_n_max():
    counts, paths = lab()
    draws = draw_scenarios(counts, paths, grid=Grid(), part="test", per_cell=4, rng=np.random.default_rng(1))
    assert len(draws) == 54 * 4
    assert len({d.name for d in draws}) == len(draws)
    for n_max in (4, 8, 16):
        mine = [d for d in draws if d.cell.n_max == n_max]
        used = pd.Series([(d.counts.label, d.path.label) for d in mine]).value_counts()
        assert len(used) == (16 if n_max == 4 else 12)
        assert used.max() - used.min() <= 1
    for d in draws:
        assert d.counts.bound >= d.cell.n_max
        assert d.counts.half <= d.count_start <= len(d.counts) - d.cell.deadline_slots
        assert d.path.half <= d.path_start <= len(d.path) - d.cell.deadline_slots
        assert d.synthetic


def test_the_same_seed_draws_the_same_jobs():
    counts, paths = lab()
    one, two, other = (
        draw_scenarios(counts, paths, grid=Grid(), part="train", per_cell=1, rng=np.random.default_rng(seed))
        for seed in (5, 5, 6)
    )
    place = lambda draws: [(d.name, d.count_start, d.path_start, d.path.label) for d in draws]  # noqa: E731
    assert place(one) == place(two)
    assert place(one) != place(other)


def test_counts_and_prices_of_one_market_are_taken_at_one_time():
    rng = np.random.default_rng(0)
    counts = [tape(rng.integers(0, 17, 300), zone="own")]
    path = tape(rng.uniform(0.2, 0.9, 320), variable="price", zone="own", bound=1.0, first=FIRST - 20 * STEP)
    draws = draw_scenarios(counts, [path], grid=Grid(), part="test", per_cell=2, rng=rng)
    for d in draws:
        assert not d.synthetic
        assert d.counts.time(d.count_start) == d.path.time(d.path_start)
        assert d.path_start >= path.half


def test_a_scenario_is_the_job_of_its_cell_on_its_slots():
    counts, paths = lab()
    rng = np.random.default_rng(2)
    for draw in draw_scenarios(counts, paths, grid=Grid(), part="test", per_cell=1, rng=rng)[:20]:
        s = scenario_of(draw, peers=peers_of(draw.counts, counts))
        d, i = draw.cell.deadline_slots, draw.count_start
        assert s.job.workload == pytest.approx(draw.cell.load * d * draw.cell.n_max * 0.5)
        assert s.job.value == pytest.approx(1.5 * s.unit)
        assert s.unit > 0
        assert len(s.window) == d
        np.testing.assert_array_equal(s.window.price, draw.path.values[draw.path_start : draw.path_start + d])
        np.testing.assert_array_equal(s.window.available, draw.counts.values[i : i + d])
        past = s.record.until(3)
        np.testing.assert_array_equal(past.available, draw.counts.values[: i + 4])
        assert past.price[-1] == s.window.price[3]
        assert past.price[i - min(i, draw.path_start)] == draw.path.values[max(0, draw.path_start - i)]
        assert past.hour == pytest.approx((s.at + 3 * STEP).hour + (s.at + 3 * STEP).minute / 60)
        assert len(s.record.price) == i + d  # it includes no slot after the job


def test_no_clock_no_hour():
    counts, paths = [tape(np.full(300, 16.0), real_clock=False)], lab()[1]
    grid = Grid(deadlines=(10,), loads=(0.5,), mu_ups=(0.9,), n_maxes=(8,))
    draw = draw_scenarios(counts, paths, grid=grid, part="test", per_cell=1, rng=np.random.default_rng(0))[0]
    assert scenario_of(draw, peers=peers_of(counts[0], counts)).record.until(0).hour is None


def test_what_cannot_be_drawn_says_why():
    counts, paths = lab()
    rng = np.random.default_rng(0)
    with pytest.raises(
        MarketError, match=r"4 count series that see up to 16 instances .* N_max 32; expected .* 10 slots"
    ):
        draw_scenarios(counts, paths, grid=Grid(n_maxes=(32,)), part="test", per_cell=1, rng=rng)
    some = draw_scenarios(counts, paths, grid=Grid(n_maxes=(16, 32)), part="test", per_cell=1, rng=rng)
    assert {d.cell.n_max for d in some} == {16}  # only cells without any market are left out
    assert len(some) == 18
    with pytest.raises(SettingsError, match="jobs a cell"):
        draw_scenarios(counts, paths, grid=Grid(), part="test", per_cell=0, rng=np.random.default_rng(0))


def test_flat_paths_do_not_drown_the_lively_ones():
    flat = [
        tape(np.full(200, 0.3), variable="price", zone=f"f{k}", kind=f"flat{k % 3}", bound=1.0)
        for k in range(30)
    ]
    calm = tape(np.repeat([0.3, 0.4], 100)[:200], variable="price", zone="calm", kind="flat0", bound=1.0)
    calm.values[50] = 0.5
    lively = tape(np.arange(200) / 400, variable="price", zone="lively", kind="live", bound=1.0)
    other = tape(np.full(200, 0.3), variable="price", zone="o", kind="o", bound=1.0, source="t")
    kept = moving_paths([*flat, calm, lively, other], most=4)
    assert [p.market.zone for p in kept[:2]] == ["lively", "calm"]
    assert len([p for p in kept if p.source == "s"]) == 4
    assert len({p.market.instance_type for p in kept if p.source == "s"}) == 4
    assert other in kept
    after_the_half = tape(
        np.concatenate([np.full(100, 0.3), np.arange(100) / 100]), variable="price", bound=1.0
    )
    assert after_the_half.changes() == 0  # the choice uses nothing of the test part
