"""Trust(lambda): ski rental for each opportunity to grow, with a forecast of its duration (M10)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_window

from slackwater.optimization import PointForecast, Progress
from slackwater.optimization.job.definition import Amdahl, Linear
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import replay, see
from slackwater.studies.policies.trust import Trust, growth_cost, kept_spot
from slackwater.warehouse.errors import SettingsError

#: A job with so much time that the safety net never intervenes.
JOB = make_job(workload=400, deadline_slots=200, mu_up=0.25, value=900)


def rent_paid(policy: Trust, season: int, foretold: int) -> tuple[float, bool]:
    """Return (cost, grown) of a season of ``season`` slots for a job on 2 of 8 spot instances.

    The cost is the rents plus, if the job grows, the price of growing.
    """
    window = make_window(0.5, 8, slots=200)
    told = PointForecast(
        price=np.full(60, 0.5), available=np.array([8] * max(0, foretold - 1) + [2] * (61 - max(1, foretold)))
    )
    seen = see(JOB, window, [told] * 200)
    state, paid = policy.start(JOB), 0.0
    for slot in range(season):
        left = foretold - slot
        now = PointForecast(
            price=np.full(60, 0.5), available=np.array([8] * max(0, left - 1) + [2] * (60 - max(0, left - 1)))
        )
        view = replace(seen.view(JOB, Progress(n_previous=2), slot), forecast=now)
        allocation, state = policy.decide(state, view)
        if allocation.spot == 8:
            return paid + growth_cost(view, 8), True
        paid += 6 * 0.5
    return paid, False


@pytest.mark.parametrize("caution", [0.25, 0.5, 1.0])
def test_a_season_costs_at_most_what_ski_rental_promises(caution):
    """At most 1 + lambda times the hindsight optimum with correct forecasts, 1 + 1 / lambda with any, plus
    one slot's rent (M10).
    """
    policy, rent, price = Trust(caution=caution), 3.0, 6.0
    for season in range(1, 25):
        best = min(rent * season, price)
        paid, _ = rent_paid(policy, season, foretold=season)
        assert paid <= (1.0 + caution) * best + rent + 1e-9
        for foretold in (1, 60):
            paid, _ = rent_paid(policy, season, foretold=foretold)
            assert paid <= (1.0 + 1.0 / caution) * best + rent + 1e-9


def test_trust_moves_the_slot_of_growing():
    """Growing costs 6 and the rent is 3: two slots of rent at lambda = 1; immediately or never at lambda = 0."""
    slots = {}
    for caution in (0.0, 0.5, 1.0):
        for foretold in (1, 60):
            grown = [n for n in range(1, 12) if rent_paid(Trust(caution=caution), n, foretold)[1]]
            slots[caution, foretold] = min(grown, default=math.inf)
    assert slots == {(0.0, 60): 1, (0.0, 1): math.inf, (0.5, 60): 1, (0.5, 1): 4, (1.0, 60): 2, (1.0, 1): 2}


def random_case(seed: int, **changes):
    rng = np.random.default_rng(seed)
    job = make_job(
        workload=float(rng.uniform(10, 50)),
        deadline_slots=12,
        n_min=int(rng.integers(1, 3)),
        throughput=Linear() if seed % 2 else Amdahl(parallel=0.95, scale=1.2),
        mu_up=0.7,
        mu_down=0.9,
        value=80,
    )
    window = make_window(rng.uniform(0.2, 1.1, 12), rng.integers(0, 11, 12))
    forecasts = [
        PointForecast(price=rng.uniform(0.2, 1.1, 4), available=rng.integers(0, 11, 4)) for _ in range(12)
    ]
    return replace(job, **changes), window, forecasts


def test_without_trust_no_forecast_is_heard():
    """lambda = 1 is the classical rule: both thresholds are the break-even point."""
    for seed in range(40):
        job, window, forecasts = random_case(seed)
        heard = replay(Trust(caution=1.0), job, window, forecasts=forecasts)
        assert heard == replay(Trust(caution=1.0), job, window)


def test_where_growing_costs_nothing_it_is_greedy():
    for seed in range(40):
        job, window, forecasts = random_case(seed, mu_up=1.0, mu_down=1.0)
        for caution in (0.0, 0.3, 1.0):
            made = replay(Trust(caution=caution), job, window, forecasts=forecasts)
            greedy = replay(policy_named("MSU-trim"), job, window)
            assert made.allocations == greedy.allocations


def test_only_spot_that_is_still_there_and_cheap_is_kept():
    window = make_window(0.5, 3, slots=200)
    view = see(JOB, window, None).view(JOB, Progress(n_previous=5), 0)
    assert kept_spot(view).spot == 3
    assert kept_spot(replace(view, price=1.0)).total == 0
    assert kept_spot(replace(view, job=replace(JOB, n_min=4))).total == 0


@pytest.mark.parametrize("caution", [-0.1, 1.1, math.nan])
def test_what_is_no_share_is_refused(caution):
    with pytest.raises(SettingsError, match="share"):
        Trust(caution=caution)
