"""Mixture of archetypes and own launches: what a launch teaches, plans against paths, turning markets (M13.3)."""

import numpy as np
import pytest

from slackwater.optimization.belief.archetypes import AGES, ALL, NONE, PART, archetypes
from slackwater.optimization.belief.launches import UNKNOWN
from slackwater.optimization.belief.mixture import Mixture
from slackwater.optimization.kernels.belief import walk_inside, walk_states

KNOWN = archetypes(4, 0.5)
SHARE = KNOWN.weight @ KNOWN.share.sum(axis=1)


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
    np.testing.assert_allclose(nothing.present, SHARE)
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
    alone = mixture.draw(4000, rng)
    for age in range(AGES):
        assert np.mean([one.rows[0, age, ALL, ALL] for one in alone]) == pytest.approx(
            float(np.tensordot(mixture.weight, mixture.rows, 1)[age, ALL, ALL]), abs=0.015
        )
    assert (paths <= 2).mean() > 0.1
    assert (paths >= 46).mean() > 0.15


@pytest.mark.parametrize("learned", [0.0, 1.0])
def test_walks_are_those_of_rows_drawn_for_each_path(learned):
    """Of drawn Dirichlet rows, or of the mean rows where nothing is learned: the first states together, and how often one stays."""
    rng, slots, paths = np.random.default_rng(7), 6, 100_000
    strength = rng.gamma(1.0, size=(AGES, 3, 3)) + 0.1
    first = np.full((1, AGES * 3), 1.0)
    first[0, :ALL] = 0.0  # age 0, state ALL
    chains = np.full((1 + slots, paths), -1)
    chains[0] = 0
    walks = walk_states(first, strength[None], np.array([learned]), chains, rng.random((1 + slots, paths)))
    rows = np.broadcast_to(strength, (paths, *strength.shape))
    rows = rng.standard_gamma(rows) if learned else rows
    rows = rows / rows.sum(axis=3, keepdims=True)
    states, ages, drawn = np.full(paths, ALL), np.zeros(paths, dtype=int), [np.full(paths, ALL)]
    for _ in range(slots):
        upto = np.cumsum(rows[np.arange(paths), ages, states], axis=1)
        then = np.minimum((rng.random((paths, 1)) >= upto).sum(axis=1), ALL)
        ages, states = np.where(then == states, np.minimum(ages + 1, AGES - 1), 0), then
        drawn.append(then)
    expected = np.stack(drawn, axis=1)
    together = [
        np.bincount(own[:, 1:5] @ 3 ** np.arange(4), minlength=81) / paths for own in (walks, expected)
    ]
    np.testing.assert_allclose(*together, atol=0.01)
    stays = [
        np.bincount((np.diff(own, axis=1) == 0).sum(axis=1), minlength=slots + 1) / paths
        for own in (walks, expected)
    ]
    np.testing.assert_allclose(*stays, atol=0.01)


def test_a_drawn_market_has_certain_rows_until_it_turns():
    (own,) = believed(ALL, ALL).draw(1, np.random.default_rng(3))
    np.testing.assert_allclose(own.rows.sum(axis=3), 1.0)
    np.testing.assert_allclose(own.steps(1)[0][ALL], own.rows[0, -1, ALL], atol=0.01)
    far = ahead(own, 2000)  # by then it is any market
    np.testing.assert_allclose(far, SHARE, atol=0.1)


def unconditional(rows, first, age, parts, paths, rng):
    """Walk the states of ``parts`` parts without regard to the end, shape (paths, parts)."""
    found, states, ages = [], np.full(paths, first), np.full(paths, age)
    for _ in range(parts):
        then = (rng.random((paths, 1)) > np.cumsum(rows[ages, states], axis=1)).sum(axis=1)
        ages = np.where(then == states, np.minimum(ages + 1, AGES - 1), 0)
        states = then
        found.append(states)
    return np.stack(found, axis=1)


@pytest.mark.parametrize("age", range(AGES))
@pytest.mark.parametrize("end", [NONE, PART, ALL])
def test_states_inside_are_those_of_walks_that_happen_to_end_there(age, end):
    rng = np.random.default_rng(5)
    rows = rng.dirichlet(np.ones(3), size=(AGES, 3))
    free = unconditional(rows, ALL, age, 4, 200_000, rng)
    free = free[free[:, -1] == end][:, :-1]
    ends = np.tile([ALL, end], (100_000, 1))
    bound = walk_inside(ends, age, rows, rng.random((len(ends), 1, 3)))[:, 0]
    for k in range(3):
        shares = [np.bincount(own[:, k], minlength=3) / len(own) for own in (free, bound)]
        np.testing.assert_allclose(*shares, atol=0.01)
    pairs = [np.mean((own[:, 0] != own[:, 1]) & (own[:, 1] != own[:, 2])) for own in (free, bound)]
    assert pairs[0] == pytest.approx(pairs[1], abs=0.01)


def losses_inside(between):
    """Return the losses per slot inside slots that all start with the request granted, after a day of such readings."""
    slots = 48
    mixture = Mixture.of(KNOWN, np.full(slots, ALL), np.tile(between, (slots, 1)))
    inside = mixture.sample_inside(np.full((4000, 2), ALL), np.random.default_rng(6))
    return float((np.diff(inside, axis=2, prepend=ALL) < 0).sum(axis=(1, 2)).mean())


def test_readings_inside_slots_teach_how_often_spot_is_lost_there():
    calm, unread, restless = (
        losses_inside([ALL, ALL]),
        losses_inside([UNKNOWN] * 2),
        losses_inside([NONE, NONE]),
    )
    assert calm < unread < restless
    assert calm < 0.02
    assert restless > 0.6


def test_a_state_that_has_just_begun_ends_sooner():
    """Of the measured markets, for both ends of the states of a request."""
    for rows in (KNOWN.chain, KNOWN.inside):
        mean = np.tensordot(KNOWN.weight, rows, axes=1)
        for state in (NONE, ALL):
            assert (np.diff(mean[:, state, state]) > 0.0).all()


def test_a_belief_knows_for_how_long_a_state_has_lasted():
    """The same launches in another order: a day of them, the request granted at last."""
    back, long = [*[ALL] * 23, NONE, ALL], [NONE, *[ALL] * 24]
    chances = [believed(*states).steps(1)[0][ALL, ALL] for states in (back, long)]
    assert chances[0] < chances[1] - 0.05
    unknown = believed(UNKNOWN, ALL).steps(1)[0][ALL, ALL]
    just = believed(NONE, ALL).steps(1)[0][ALL, ALL]
    assert just < unknown


@pytest.mark.parametrize("gap", [1, 3, 10])
def test_an_old_launch_is_moved_on_as_paths_are(gap):
    states = [ALL, NONE, ALL, *[UNKNOWN] * gap]
    paths = believed(*states[:-gap]).sample(gap, paths=40_000, rng=np.random.default_rng(7))
    then = np.bincount(paths[:, -1], minlength=3) / len(paths)
    np.testing.assert_allclose(believed(*states).present, then, atol=0.04)  # paths may turn
