"""Prior measured before the first job: the shipped file, its rounds, and a learner that starts with them (M5.6)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.optimization.moving import MULTI_MARKET_POLICIES
from slackwater.optimization.policies.pool import load_pool
from slackwater.optimization.selection.contract import Learner, leader, play, weigh
from slackwater.optimization.selection.learners import LEARNERS, learner_named
from slackwater.optimization.selection.prior import (
    DEFAULT_PRIOR,
    MeasuredWorld,
    inform_learner,
    prior_rounds,
    read_prior,
)
from slackwater.studies.experiments.selection import write_prior
from slackwater.studies.rounds import best_sequence
from slackwater.warehouse.errors import SettingsError

NAMES = ("a", "b", "c", "d")


def world(source: str = "lab", jobs: int = 10, **share: float) -> MeasuredWorld:
    return MeasuredWorld(source=source, command="measure", jobs=jobs, share=share)


PRIOR = world(a=0.80, b=0.75, c=0.5, d=0.5)


def taught(*worlds: MeasuredWorld, jobs: int = 60, learner: str = "blend") -> Learner:
    return inform_learner(learner_named(learner), worlds, jobs=jobs)


#: Policies of the pool that sleep through the prior until it is measured again (M5.3, M5.6).
NEW_POLICIES = {"Reserve(60)", "Sizing"}


def test_the_shipped_file_knows_every_policy_but_the_new_ones():
    worlds = read_prior(DEFAULT_PRIOR)
    for group in (load_pool(), MULTI_MARKET_POLICIES.values()):
        names = {one.name for one in group} - NEW_POLICIES
        knowing = [one for one in worlds if names & set(one.share)]
        assert len(knowing) >= 2
        assert all(set(one.share) == names for one in knowing), "measure again: the pool is another one"
        assert all(one.jobs >= 10 and "experiment" in one.command for one in knowing)


def test_worlds_take_turns_and_a_policy_they_do_not_know_sleeps():
    rows = prior_rounds(NAMES, [world(a=0.9, b=0.5), world(x=1.0), world(a=0.7, b=0.6, c=0.8)], jobs=5)
    assert rows.shape == (4, 4)
    np.testing.assert_array_equal(rows[0], [0.9, 0.5, np.nan, np.nan])
    np.testing.assert_array_equal(rows[1], [0.7, 0.6, 0.8, np.nan])
    np.testing.assert_array_equal(rows[2:], rows[:2])
    assert not len(prior_rounds(NAMES, [world(x=1.0)], jobs=60))
    assert not len(prior_rounds(NAMES, [world(a=1.0)], jobs=0))


def test_a_file_is_read_as_it_was_written(tmp_path):
    worlds = (world("lab:one", a=0.25, b=0.75), world("lab:two", jobs=3, **{"AHAP(3,1,0.5,expected)": 0.5}))
    write_prior(tmp_path / "prior.toml", worlds)
    assert read_prior(tmp_path / "prior.toml") == worlds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[world]]\nsource = 'x'", "command"),
        ("[[world]]\nsource = 'x'\ncommand = 'y'\njobs = 1\n[world.share]\na = 1.5", "share of a"),
        ("[[world]]\nsource = 'x'\ncommand = 'y'\njobs = 1\n[world.share]", "no policy"),
        ("world = 3", "int"),
        ("[[world", "prior.toml"),
    ],
)
def test_a_damaged_file_says_what_is_wrong_and_how_to_make_one(tmp_path, text, says):
    (tmp_path / "prior.toml").write_text(text)
    with pytest.raises(SettingsError, match=says) as told:
        read_prior(tmp_path / "prior.toml")
    assert "--prior FILE" in str(told.value)


def test_a_missing_file_says_so(tmp_path):
    with pytest.raises(SettingsError, match="No such file"):
        read_prior(tmp_path / "none.toml")


@pytest.mark.parametrize("name", [name for name in LEARNERS if name != "blend"])
def test_it_begins_as_the_learner_would_after_those_rounds(name):
    worlds = world(a=0.2, b=0.9, c=0.5, d=0.1), world(a=0.3, b=0.8, c=0.7, d=0.1)
    rounds = np.random.default_rng(3).random((5, 4))
    before = prior_rounds(NAMES, worlds, jobs=60)
    together = weigh(learner_named(name), NAMES, np.vstack([before, rounds]))
    alone = weigh(taught(*worlds, learner=name), NAMES, rounds)
    for mine, theirs in zip(alone, together[60:], strict=True):
        assert mine.log_weight.tobytes() == theirs.log_weight.tobytes()
    assert leader(alone[0]) == "b"


def test_a_blend_does_not_learn_from_means_which_of_its_parts_to_trust():
    """Noise-free rounds favour the part that changes fastest; a single contrary job would then change the whole."""
    one, came = taught(PRIOR), np.array([[0.75, 0.80, 0.5, 0.5]] * 3)
    assert [leader(weights) for weights in weigh(one, NAMES, came)[:2]] == ["a", "a"]


def test_without_jobs_or_knowledge_it_is_the_learner():
    rounds = np.random.default_rng(4).random((9, 4))
    plain = weigh(learner_named("blend"), NAMES, rounds)
    for one in (taught(world(a=1.0, b=0.2), jobs=0), taught(world(x=1.0))):
        for mine, theirs in zip(weigh(one, NAMES, rounds), plain, strict=True):
            assert mine.log_weight.tobytes() == theirs.log_weight.tobytes()


def test_jobs_overcome_a_prior_that_is_wrong():
    """The prior favours a policy by 0.05 for 60 jobs; observations favour another by as much, so about as
    many jobs are needed.
    """
    came = np.tile([0.75, 0.80, 0.5, 0.5], (90, 1))
    leaders = {
        name: [leader(weights) for weights in weigh(taught(PRIOR, learner=name), NAMES, came)]
        for name in ("adahedge", "blend")
    }
    assert {led[0] for led in leaders.values()} == {"a"}
    assert leaders["adahedge"].index("b") in range(50, 71)
    # Parts of the blend forget, so it needs fewer jobs.
    assert leaders["blend"].index("b") in range(2, 61)
    assert {led[-1] for led in leaders.values()} == {"b"}


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["random", "hostile", "switch"]),
    name=st.sampled_from(sorted(LEARNERS)),
    jobs=st.sampled_from([1, 8, 60]),
)
def test_regret_stays_below_its_bound_whatever_was_believed(seed, kind, name, jobs):
    rng = np.random.default_rng(seed)
    believed = world(**dict(zip(NAMES, rng.random(4), strict=True)))
    one = taught(believed, jobs=jobs, learner=name)
    rounds = rng.random((80, 4))
    if kind == "hostile":  # the policy favoured by the prior earns nothing
        rounds[:, int(np.argmax(list(believed.share.values())))] = 0.0
    if kind == "switch":
        rounds[40:] = rounds[40:, ::-1] ** 3
    played = play(one, NAMES, rounds)
    assert (played.static_regret <= one.static_bounds(played) + 1e-9).all()
    shifting = best_sequence(played.utilities, 1) - played.expected.cumsum()
    assert (shifting <= one.shifting_bounds(played, 1) + 1e-9).all()
