"""Jobs in several markets of ``slackwater experiment world`` on a small folder."""

import numpy as np
import pytest

from slackwater.optimization.moving.policies import GreedySpot
from slackwater.studies.experiments.material import World
from slackwater.studies.experiments.world_markets import (
    DEVELOPED_DAYS,
    MARKET_POLICIES,
    MarketRuns,
    market_rows,
    markets_section,
    replay_trip,
    run_markets,
    trip_case,
    trips_of,
)


@pytest.fixture(scope="module")
def trips():
    rng, slots = np.random.default_rng(3), 7 * 48
    counts = {zone: 4.0 * (np.cumsum(rng.random(slots) < 0.15) % 2) for zone in ("a", "b", "c")}
    world = World(
        name="three zones",
        counts=counts,
        prices={zone: np.full(slots, 0.4) for zone in counts},
        on_demand_usd=dict.fromkeys(counts, 1.0),
        slot_hours=0.5,
        synthetic=False,
    )
    return trips_of([world], every_hours=24, rng=rng)


def test_jobs_have_the_markets_that_their_zones_were_in_the_days_that_were_left_for_them(trips):
    assert {trip.form for trip in trips} == {"linear", "Amdahl 0.95"}
    assert all(trip.day % DEVELOPED_DAYS for trip in trips)
    for trip in trips[:6]:
        case, unit = trip_case(trip)
        assert unit > 0.0
        assert len(case.cases) == len(trip.zones) > 1
        for zone, known in zip(trip.zones, case.cases, strict=True):
            counts = np.asarray(trip.world.counts[zone])[trip.first : trip.first + trip.slots]
            assert known.window.available.tolist() == counts.tolist()
        assert (case.job.home is None) != trip.located


def test_no_policy_is_late_and_the_rows_are_means_of_the_jobs(trips):
    chosen = [trip for trip in trips if trip.slots == 20][:2]
    runs = run_markets(chosen)
    assert runs.late.sum() == 0
    assert runs.cost.shape == (2, len(MARKET_POLICIES))
    rows = market_rows(runs, np.random.default_rng(1))
    assert rows[0]["jobs_of"] == "all"
    assert rows[0]["cost"]["Plan"] == pytest.approx(runs.cost[:, -1].mean())
    difference = rows[0]["plan_cheaper_than"]["Greedy"]["mean"]
    assert difference == pytest.approx((runs.cost[:, 0] - runs.cost[:, -1]).mean())
    assert markets_section(rows).heading == "Several markets"
    assert isinstance(runs.among(np.array([True, False])), MarketRuns)


def test_a_cost_is_in_units_of_on_demand_only_in_the_cheapest_market(trips):
    ((cost, late),) = replay_trip(trips[0], (GreedySpot(),))
    assert 0.0 < cost < 3.0
    assert late == 0.0
