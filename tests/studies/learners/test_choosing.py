"""Choice among predictors: timing of updates, and no learning from jobs that have not ended (M10)."""

from __future__ import annotations

import numpy as np
import pytest

from slackwater.optimization.selection.contract import play, weigh
from slackwater.optimization.selection.learners import LEARNERS
from slackwater.studies.learners import BANDITS
from slackwater.studies.learners.contract import play_bandit
from slackwater.studies.rounds import Spans, follow_least_loss, play_delayed, play_delayed_bandit
from slackwater.warehouse.errors import SettingsError

NAMES = ("a", "b", "c")


def one_by_one(jobs):
    """Return spans of jobs that never overlap."""
    return Spans(start=np.arange(jobs, dtype=float), known=np.arange(jobs) + 1.0)


def overlapping(jobs, seed=0):
    rng = np.random.default_rng(seed)
    start = np.sort(rng.integers(0, 2 * jobs, jobs)).astype(float)
    return Spans(start=start, known=start + rng.integers(1, 30, jobs))


def test_every_job_is_learned_when_it_is_known_and_once():
    spans = overlapping(60)
    lessons = list(spans.lessons())
    told = [j for ready in lessons for j in ready]
    assert len(told) == len(set(told))
    for k in range(60):
        by_then = {j for ready in lessons[: k + 1] for j in ready}
        assert by_then == {j for j in range(k) if spans.known[j] <= spans.start[k]}


def test_without_overlap_it_is_the_learner_itself():
    table = np.random.default_rng(1).uniform(size=(40, 3))
    for name in ("blend", "adahedge"):
        np.testing.assert_array_equal(
            play_delayed(LEARNERS[name], NAMES, table, one_by_one(40)).chances,
            play(LEARNERS[name], NAMES, table).chances,
        )
    for name in ("exp3", "ar-ucb pooled"):
        late = play_delayed_bandit(BANDITS[name], NAMES, table, one_by_one(40), rng=np.random.default_rng(2))
        plain, _ = play_bandit(BANDITS[name], NAMES, table, rng=np.random.default_rng(2))
        np.testing.assert_array_equal(late.drawn, plain.drawn)
        np.testing.assert_array_equal(late.chances, plain.chances)


def test_with_overlap_it_knows_exactly_the_jobs_that_have_ended():
    table, spans = np.random.default_rng(3).uniform(size=(50, 3)), overlapping(50)
    chances = play_delayed(LEARNERS["adahedge"], NAMES, table, spans).chances
    for k in (0, 10, 49):
        ended = sorted(
            (j for j in range(k) if spans.known[j] <= spans.start[k]), key=lambda j: (spans.known[j], j)
        )
        np.testing.assert_allclose(
            chances[k], weigh(LEARNERS["adahedge"], NAMES, table[ended].reshape(-1, 3))[-1].probability
        )


@pytest.mark.parametrize("scrambled", [1, 2, 3])
def test_no_choice_knows_a_job_that_has_not_ended(scrambled):
    rng, spans = np.random.default_rng(scrambled), overlapping(50, seed=scrambled)
    table = rng.uniform(size=(50, 3))
    k = 30
    open_jobs = spans.known > spans.start[k]
    other = np.where(open_jobs[:, None], rng.uniform(size=(50, 3)), table)
    for play_it in (
        lambda t: play_delayed(LEARNERS["blend"], NAMES, t, spans).chances,
        lambda t: play_delayed_bandit(BANDITS["exp3"], NAMES, t, spans, rng=np.random.default_rng(5)).chances,
        lambda t: follow_least_loss(t, spans),
    ):
        # A job still open when k starts was open, or had not begun, when every job before k started.
        np.testing.assert_array_equal(play_it(table)[: k + 1], play_it(other)[: k + 1])


def test_the_least_loss_is_the_mean_of_what_is_known():
    losses = np.array([[1.0, 2.0, np.nan], [5.0, 1.0, np.nan], [0.0, 0.0, np.nan], [9.0, 9.0, np.nan]])
    spans = Spans(start=np.array([0.0, 1.0, 2.0, 3.0]), known=np.array([1.5, 2.5, 5.0, 6.0]))
    assert follow_least_loss(losses, spans, first=2).tolist() == [2, 2, 0, 1]


def test_wrong_spans_and_tables_are_refused():
    with pytest.raises(SettingsError, match="sort the jobs"):
        Spans(start=np.array([1.0, 0.0]), known=np.array([2.0, 2.0]))
    with pytest.raises(SettingsError, match="before it started"):
        Spans(start=np.array([1.0, 2.0]), known=np.array([1.0, 3.0]))
    with pytest.raises(SettingsError, match="one of each"):
        Spans(start=np.array([1.0, 2.0]), known=np.array([3.0]))
    with pytest.raises(SettingsError, match="one row for each job"):
        play_delayed(LEARNERS["blend"], NAMES, np.ones((3, 3)), one_by_one(2))
    with pytest.raises(SettingsError, match="shares in"):
        play_delayed(LEARNERS["blend"], NAMES, np.full((2, 3), 2.0), one_by_one(2))
