"""Learned state is stored per policy: a policy added later neither erases it nor gains from its absence."""

from dataclasses import replace

import numpy as np
import pytest

from slackwater.optimization.selection.contract import weigh
from slackwater.optimization.selection.learned import REPLAYED_JOBS, Rounds, leading
from slackwater.optimization.selection.learners import LEARNERS, learner_named

NAMES = ("a", "b", "c")


def rounds(rows, names=NAMES, at=1):
    values = np.array(rows, dtype=float)
    return Rounds(
        jobs=tuple(f"j{k}" for k in range(len(rows))),
        names=tuple(names),
        utilities=values,
        known_us=np.where(np.isnan(values), 0, np.arange(at, at + len(rows))[:, None]),
    )


@pytest.fixture
def played():
    rng = np.random.default_rng(5)
    return rng.uniform(size=(40, 2)) * np.array([0.9, 1.0])


@pytest.mark.parametrize("name", LEARNERS)
def test_without_sleepers_the_weights_are_those_of_the_learner(name, played):
    learner = learner_named(name)
    own = [w.log_weight.tolist() for w in rounds(played, NAMES[:2]).weights(learner)]
    assert own == [w.log_weight.tolist() for w in weigh(learner, NAMES[:2], played)]


@pytest.mark.parametrize("name", LEARNERS)
def test_a_policy_that_slept_has_the_regret_of_its_own_rounds_and_others_keep_their_order(name, played):
    learner = learner_named(name)
    with_new = rounds(np.column_stack([played, np.full(len(played), np.nan)]))
    full = with_new.full(learner)
    assert (full[:, :2] == played).all(), "what was learned of the others stays as it is"
    for row, before in zip(full, weigh(learner, NAMES, full), strict=False):
        trust = before.probability[:2] / before.probability[:2].sum()
        assert row[2] == pytest.approx(trust @ row[:2])
        assert before.probability @ row == pytest.approx(row[2]), "no regret in a round slept through"
    newest = with_new.newest(learner).probability
    before = rounds(played, NAMES[:2]).newest(learner).probability
    assert newest[2] > 0
    assert (newest[0] > newest[1]) == (before[0] > before[1])


def test_the_first_policies_alone_are_where_nothing_else_was_learned():
    learner = learner_named("anytime")
    found = rounds([[0.2, 0.8, np.nan], [np.nan, np.nan, 0.5]])
    assert found.full(learner)[1].tolist() == [0.5, 0.5, 0.5]


def test_what_became_known_later_is_asleep_before():
    table = rounds([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]], at=10)
    later = table.with_job("j0", {"a": 0.9}, 50)
    assert later.utilities[0, 0] == 0.1, "what is known of a policy and job stays"
    lacking = rounds([[0.1, 0.2, np.nan], [0.4, 0.5, 0.6]], at=10)
    filled = lacking.with_job("j0", {"c": 0.3}, 50)
    assert filled.lacking("j0") == ()
    assert lacking.lacking("j0") == ("c",)
    assert lacking.lacking("other") == NAMES
    then = filled.before(50)
    assert np.isnan(then.utilities[0, 2])
    assert then.jobs == ("j0", "j1")
    assert filled.before(51).begins(filled)
    assert not then.begins(filled)
    assert not filled.begins(replace(filled, jobs=("other", "j1"))), "alike utilities of another job"
    assert then.known_us[0].tolist() == [10, 10, 0], "0 where nothing was known yet"
    assert filled.with_job("j2", {"b": 0.7}, 60).known_us[2].tolist() == [0, 60, 0]


def test_what_is_learned_at_a_time_counts_after_it():
    table = rounds([[0.1, 0.2, 0.3]], at=10)
    assert table.before(11).jobs == ("j0",)
    assert table.before(10).jobs == ()


def test_old_jobs_are_left_alone():
    many = rounds(np.full((REPLAYED_JOBS + 5, 3), 0.5))
    lacking = np.array(many.utilities)
    lacking[:, 2] = np.nan
    found = rounds(lacking).settled_jobs()
    assert found == {f"j{k}" for k in range(5)}
    assert many.settled_jobs() == set(many.jobs)


def test_the_leader_says_why(played):
    name, why = leading(rounds(played, NAMES[:2]).newest(learner_named("blend")), len(played))
    assert name in NAMES[:2]
    assert why.startswith("leads after 40 jobs, weight 0.")
