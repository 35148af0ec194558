"""A capacity of any size: distributions end at a width that no job exceeds, and no array grows with the capacity."""

import numpy as np
import pytest

from slackwater.forecasting.accuracy.losses import brier_by_capacity, conditional_frequencies
from slackwater.forecasting.quantiles import LEVELS, MOST_COUNT, count_distribution
from slackwater.optimization.fleet.competition import Claim, contender, share_out
from slackwater.optimization.market.belief import Forgetting, Now, make_belief
from slackwater.optimization.market.window import Past, Quantiles, of_quantiles

HUGE = 10**9


def quantiles(level, horizon=4):
    return np.full((horizon, LEVELS.size), float(level))


@pytest.mark.parametrize("capacity", [MOST_COUNT + 1, 10**6, HUGE])
def test_a_law_ends_with_the_chance_of_its_last_count_or_more(capacity):
    distribution = count_distribution(quantiles(8), capacity)
    assert distribution.shape == (4, MOST_COUNT + 1)
    assert distribution.sum(axis=1) == pytest.approx(1.0)
    assert distribution[:, 8].min() > 0.9
    many = count_distribution(quantiles(capacity - 1), capacity)
    assert many[:, -1] == pytest.approx(1.0, abs=0.05)


def test_a_law_that_fits_is_what_it_was():
    assert count_distribution(quantiles(8), 16).shape == (4, 17)
    assert count_distribution(quantiles(8), MOST_COUNT)[:, 8:10] == pytest.approx(
        count_distribution(quantiles(8), MOST_COUNT + 1)[:, 8:10], abs=1e-4
    )


def test_a_belief_plans_any_job_on_a_market_of_any_size():
    point = of_quantiles(Quantiles(price=quantiles(1), count=quantiles(8), capacity=HUGE))
    past = Past(price=np.full(50, 1.0), available=np.full(50, 8.0), peers=np.empty((0, 50)))
    now = Now(slot=0, slot_hours=0.5, price=1.0, available=8.0, on_demand_usd=3.0)
    belief = make_belief(past, point, now=now, forgetting=Forgetting())
    assert belief.chance_of_spot(8) > 0.9 > belief.chance_of_spot(9)
    assert belief.count_distribution.shape == (4, MOST_COUNT + 1)
    paths = belief.sample(10, paths=20, rng=np.random.default_rng(1))
    prices, counts = paths.price, paths.count
    assert prices.shape == counts.shape == (20, 10)
    chain, _ = belief.for_size(1024, 10)
    assert chain.count[-1] <= 1024
    assert len(list(belief.draw(3, np.random.default_rng(2)))) == 3


def test_scores_of_a_market_of_any_size_are_counted_in_bounded_memory():
    capacity = np.array([HUGE, HUGE, 8])
    scores = brier_by_capacity(np.stack([quantiles(8)] * 3), np.full((3, 4), 8.0), capacity)
    assert np.isfinite(scores).all()
    assert scores[:2] == pytest.approx(scores[0, 0])
    assert scores.max() < 0.01
    assert conditional_frequencies(np.full(100, 8.0), HUGE, 2).shape == (2, MOST_COUNT, 2)


def test_sharing_a_market_of_any_size_takes_what_the_jobs_want():
    jobs = [
        contender(
            name, 3, ("small", 2), [Claim(None, 0, 0.0), Claim("small", 2, 5.0), Claim("large", 2, 4.0)]
        )
        for name in "ab"
    ]
    shares = share_out(jobs, {"small": 2, "large": HUGE})
    assert sorted(claim.market for claim in shares.claims) == ["large", "small"]
    assert shares.prices.get("large", 0.0) == 0.0
