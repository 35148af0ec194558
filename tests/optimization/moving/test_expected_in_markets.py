"""Expected outcome of a job with a soft deadline in several markets, on whose paths the policy learns (M13.4)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from forms_kit import quick_first
from make import make_job, make_multi_job, make_record, make_window

from slackwater.optimization.belief.archetypes import archetypes
from slackwater.optimization.belief.launches import Launch, Launches, request_counts
from slackwater.optimization.belief.mixture import Mixture
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.replay.decision import Effort, LiveJob, decide
from slackwater.optimization.replay.run import Case, see
from slackwater.optimization.world.readings import market_readings
from slackwater.optimization.world.replay import Launcher, WorldCase, replay_in_world

SLOTS, SIZE = 24, 4
EFFORT = Effort(solver_seconds=1.0, risk_paths=400, seed=3)


def soft_job(workload: float = 48.0, value: float = 40.0):
    return make_job(workload=workload, deadline_slots=SLOTS, n_max=SIZE, value=value)


def never_any() -> list[Launch]:
    """Return launches in all slots of two days before the job, none of which got an instance."""
    return [Launch(slot=k, state=0) for k in range(-96, 1)]


def expected_in(job, *, prices=(0.25,), tried=((),), policy=MeanField()):  # noqa: B008
    """Return the expected outcome of a job in markets without counts, each with a spot price and own launches."""
    window = replace(
        make_window(np.full(SLOTS, 0.25), np.full(SLOTS, SIZE), slot_hours=0.5), availability_observed=False
    )
    seen = tuple(
        see(
            job,
            replace(window, price=np.full(SLOTS, price)),
            None,
            None,
            Launches.of(SIZE, own, SLOTS, archetypes(SIZE, 0.5), first=96),
        )
        for price, own in zip(prices, tried, strict=True)
    )
    live = LiveJob(
        job=make_multi_job(job, len(seen)),
        start=pd.Timestamp("2026-01-01T00:00Z"),
        step=pd.Timedelta("30min"),
        slot=0,
        seen=seen,
        decided={},
        names=tuple(f"market-{m}" for m in range(len(seen))),
    )
    return decide(live, policy, EFFORT).expected


def noise(first, second) -> float:
    """Return three standard errors of the difference of two mean costs, from their 80 % intervals."""
    widths = [(own.cost_p90_usd - own.cost_p10_usd) / 2.56 for own in (first, second)]
    return 3.0 * float(np.hypot(*widths)) / np.sqrt(EFFORT.risk_paths)


@pytest.mark.parametrize("workload", [16.0, 24.0, 30.0])
def test_a_market_without_spot_changes_neither_cost_nor_risk(workload):
    job = soft_job(workload, value=0.8 * workload)
    alone = expected_in(job)
    more = expected_in(job, prices=(0.25, 0.25), tried=((), never_any()))
    assert more.cost_usd == pytest.approx(alone.cost_usd, abs=noise(alone, more) + 0.05 * job.workload)
    assert more.late_probability == pytest.approx(alone.late_probability, abs=0.1)


@pytest.mark.parametrize("dear", [0.3, 0.6, 0.9])
def test_another_market_makes_no_job_worse(dear):
    """The second market costs more. A job that is given up less often may cost more, but is not worth less."""
    job = soft_job(24.0, value=20.0)
    alone, more = expected_in(job), expected_in(job, prices=(0.25, dear), tried=((), ()))
    assert more.utility_usd > alone.utility_usd - noise(alone, more)
    assert more.late_probability < alone.late_probability + 0.05


@pytest.mark.parametrize("worth", quick_first([0.6, 0.95, 0.4, 0.8], 2))
@pytest.mark.parametrize("prices", [(0.25, 0.25), (0.5, 0.7), (0.7, 0.7, 0.7)])
def test_no_decision_is_expected_to_lose_money(worth, prices):
    """A job that is not worth its cost is given up: another market that may have spot is no reason to run on demand."""
    job = soft_job(36.0, value=36.0 * worth)
    tried = tuple(never_any() if m else () for m in range(len(prices)))
    expected = expected_in(job, prices=prices, tried=tried)
    assert expected.utility_usd > -0.03 * job.value


def test_a_job_is_given_up_where_spot_never_comes():
    """In the replay, too, after a first slot that is a gap in every market."""
    job = soft_job(36.0, value=0.8 * 36.0)
    record = np.zeros(240)
    record[::40] = SIZE
    counts = np.concatenate([record, [np.nan], np.zeros(SLOTS - 1)])
    window = make_window(np.append(1.0, np.full(SLOTS - 1, 0.25)), counts[240:], slot_hours=0.5)
    known = make_record(np.full(len(counts), 0.25), counts, first=240, slot_hours=0.5)
    case = Case(job=job, window=window, record=known)
    readings = market_readings(window, None)
    in_two = WorldCase(job=make_multi_job(job, 2), cases=(case,) * 2, readings=(readings,) * 2)
    (outcome,) = replay_in_world([MeanField()], in_two, launcher=Launcher.SLOTS)
    assert outcome.total_cost_usd < 0.1 * job.value


def drawn_case(rng: np.random.Generator, job, markets: int) -> WorldCase:
    """Return a job in markets drawn from the archetypes, where a launch is tried in every slot from the second on."""
    prior, counts = archetypes(SIZE, 0.5), request_counts(SIZE)
    cases, readings = [], []
    for _ in range(markets):
        (market,) = Mixture.of(prior, np.array([-1])).draw(1, rng)
        states = market.sample(SLOTS, paths=1, rng=rng)
        window = make_window(np.full(SLOTS, 0.25), counts[states[0, :-1]], slot_hours=0.5)
        tried = [Launch(slot=k, state=int(states[0, k])) for k in range(1, SLOTS)]
        cases.append(
            Case(job=job, window=window, record=None, launches=Launches.of(SIZE, tried, SLOTS, prior))
        )
        inside = counts[market.sample_inside(states, rng)[0]].astype(float)
        readings.append(market_readings(window, inside))
    return WorldCase(job=make_multi_job(job, markets), cases=tuple(cases), readings=tuple(readings))


@pytest.mark.slow
@pytest.mark.parametrize("markets", [1, 2])
def test_cost_and_risk_are_right_where_the_belief_is(markets):
    """Compares the prediction on prices alone with jobs in markets drawn from the same belief."""
    job, rng = soft_job(24.0, value=16.0), np.random.default_rng(markets)
    predicted = expected_in(job, prices=(0.25,) * markets, tried=((),) * markets)
    found = [
        replay_in_world([MeanField()], drawn_case(rng, job, markets), launcher=Launcher.SLOTS)[0]
        for _ in range(60)
    ]
    paid, late = np.array([[one.total_cost_usd, not one.on_time] for one in found]).T
    assert predicted.cost_usd == pytest.approx(paid.mean(), abs=3.0 * paid.std() / np.sqrt(len(paid)))
    assert predicted.late_probability == pytest.approx(late.mean(), abs=0.15)
