"""The benchmark of competing jobs: its draws, and that spot refused to a job alone is shared among jobs together."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.competition import CASES, WARM_SLOTS, alone, entrants, starts_of, together
from slackwater.studies.experiments.material import World


@pytest.fixture(scope="module")
def world():
    slots = 200
    return World(
        name="made up",
        counts={zone: np.full(slots, 4.0) for zone in "abc"},
        prices={zone: np.full(slots, usd) for zone, usd in zip("abc", (0.3, 0.5, 0.6), strict=True)},
        on_demand_usd=dict.fromkeys("abc", 1.0),
        slot_hours=0.5,
        synthetic=False,
    )


@pytest.mark.slow
def test_jobs_together_hold_no_more_than_there_is_and_cost_less(world):
    apart_usd = shared_usd = 0.0
    for name in ("3 of one zone and 2 movers on 3", "5 movers on 3", "5 of one zone on 2"):
        jobs = entrants(world, CASES[name], WARM_SLOTS, np.random.default_rng(3))
        apart, refused, asked = alone(world, jobs)
        assert 0 < refused < asked
        shared = together(jobs)
        for held in (apart, shared):
            used: dict[tuple[int, str], int] = {}
            for job, own in zip(jobs, held, strict=True):
                for slot, (market, allocation) in enumerate(own):
                    if market is not None:
                        at = job.first + slot, job.zones[market]
                        used[at] = used.get(at, 0) + allocation.spot
            assert max(used.values()) <= 4
        apart_usd += sum(job.outcome(own)[0] for job, own in zip(jobs, apart, strict=True))
        shared_usd += sum(job.outcome(own)[0] for job, own in zip(jobs, shared, strict=True))
        assert not any(job.outcome(own)[1] for job, own in zip(jobs, shared, strict=True))
    assert shared_usd < apart_usd


def test_a_case_has_its_jobs_of_one_zone_first(world):
    jobs = entrants(world, CASES["3 of one zone and 2 movers on 3"], WARM_SLOTS, np.random.default_rng(3))
    assert [len(job.zones) for job in jobs] == [1, 1, 1, 3, 3]


def test_starts_of_a_half_leave_room_for_the_longest_job(world):
    for earlier, low, high in ((True, WARM_SLOTS, 100), (False, 100, 200)):
        found = starts_of(world, 5, earlier=earlier)
        assert found[0] == low
        assert found[-1] + 28 == high
