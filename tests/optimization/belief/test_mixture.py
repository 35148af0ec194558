"""Mixture of archetypes and own launches: what a launch teaches, plans against paths, turning markets (M13.3)."""

import numpy as np
import pytest

from slackwater.optimization.belief.archetypes import ALL, NONE, PART, archetypes
from slackwater.optimization.belief.launches import UNKNOWN
from slackwater.optimization.belief.mixture import Mixture

KNOWN = archetypes(4, 0.5)


def believed(*states):
    return Mixture.of(KNOWN, np.array(states))


def ahead(mixture, slots):
    share = mixture.present
    for step in mixture.steps(slots):
        share = share @ step
    return share


def test_without_a_launch_the_belief_is_that_of_the_measured_markets():
    nothing = believed(UNKNOWN)
    np.testing.assert_allclose(nothing.weight, KNOWN.weight)
    np.testing.assert_allclose(nothing.present, KNOWN.weight @ KNOWN.share)
    np.testing.assert_allclose(ahead(nothing, 48), nothing.present, atol=0.03)  # time teaches nothing


def test_each_launch_counts_and_an_old_launch_counts_less():
    granted, refused = believed(ALL), believed(NONE)
    assert (granted.present[ALL], refused.present[NONE]) == pytest.approx((1.0, 1.0))
    assert ahead(granted, 24)[ALL] > ahead(believed(UNKNOWN), 24)[ALL] > ahead(refused, 24)[ALL]
    calm, restless = believed(*[ALL] * 12), believed(*[ALL, NONE] * 6, ALL)
    assert ahead(calm, 12)[ALL] > ahead(granted, 12)[ALL] > ahead(restless, 12)[ALL]
    old = believed(ALL, *[UNKNOWN] * 24)
    assert granted.present[ALL] > old.present[ALL] > ahead(believed(UNKNOWN), 24)[ALL]


@pytest.mark.parametrize("states", [(UNKNOWN,), (ALL,), (PART, NONE), (ALL, ALL, NONE, NONE, UNKNOWN)])
def test_plans_have_nearly_the_marginals_of_the_sampled_paths(states):
    """Nearly: a path keeps its drawn rows, which a transition by slot cannot say."""
    mixture = believed(*states)
    paths = mixture.sample(24, paths=20_000, rng=np.random.default_rng(1))
    share = mixture.present
    for k, step in enumerate(mixture.steps(24), start=1):
        share = share @ step
        np.testing.assert_allclose(np.bincount(paths[:, k], minlength=3) / len(paths), share, atol=0.1)


def test_paths_differ_by_market():
    """A path has a market of its own: hours granted vary more than in one chain with the same marginals."""
    mixture = believed(UNKNOWN)
    rng = np.random.default_rng(2)
    paths = (mixture.sample(48, paths=4000, rng=rng) == ALL).sum(axis=1)
    alone = mixture.drawn(4000, rng)
    assert np.mean([one.rows[0, ALL, ALL] for one in alone]) == pytest.approx(
        float(np.tensordot(mixture.weight, mixture.rows, 1)[ALL, ALL]), abs=0.01
    )
    assert (paths <= 2).mean() > 0.1
    assert (paths >= 46).mean() > 0.15


def test_a_drawn_market_has_certain_rows_until_it_turns():
    (own,) = believed(ALL, ALL).drawn(1, np.random.default_rng(3))
    np.testing.assert_allclose(own.rows.sum(axis=2), 1.0)
    np.testing.assert_allclose(own.steps(1)[0][ALL], own.rows[0, ALL], atol=0.01)
    far = ahead(own, 2000)  # by then it is any market
    np.testing.assert_allclose(far, KNOWN.weight @ KNOWN.share, atol=0.1)
