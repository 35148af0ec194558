"""The choice among forecasters: from a folder to the answer and the page, and its findings on known tables (M10)."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_kit import printed
from page_kit import charts_of, rendered
from tidy_folder import write_tidy

from slackwater.flows.show.formats import plain
from slackwater.studies.experiments.error import NONE
from slackwater.studies.experiments.predictors import (
    PredictorRounds,
    predictors_answer,
    predictors_report,
    replay_forecasters,
)
from slackwater.studies.rounds import Spans
from slackwater.studies.trials.scenarios import Grid
from slackwater.warehouse.errors import SettingsError

ARMS = ("last_value", "markov", "combined", NONE)


def made_up(best: str, jobs: int, *, accurate: str = "markov") -> PredictorRounds:
    """Return jobs on which planning with ``best`` earns most and ``accurate`` errs least; two markets, no overlap."""
    rng = np.random.default_rng(4)
    skill = np.array([0.1 * (arm == best) for arm in ARMS])
    raw = 0.8 + skill[None, :, None] + rng.normal(0, 0.02, (jobs, 1, 1)) + rng.normal(0, 0.005, (jobs, 4, 2))
    losses = np.array([1.0 if arm == accurate else 2.0 for arm in ARMS]) + np.zeros((jobs, 1))
    losses[:, -1] = np.nan
    return PredictorRounds(
        arms=ARMS, policies=("p", "q"), raw=raw, shares=np.clip(raw / 2, 0, 1), perfect=raw.max(axis=1) + 0.05,
        losses=losses, spans=Spans(start=np.arange(jobs, dtype=float), known=np.arange(jobs) + 1.0),
        markets=("x", "y") * (jobs // 2), synthetic=10, blocks=np.arange(jobs) // 5,
    )  # fmt: skip


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    grid = Grid(deadlines=(10,), loads=(0.5,), mu_ups=(0.9,), n_maxes=(4, 8))
    folder = write_tidy(tmp_path_factory.mktemp("data"))
    return replay_forecasters(folder, ("last_value", "markov"), seed=1, per_cell=4, grid=grid)


@pytest.mark.slow
def test_from_a_folder_to_an_answer(replayed, capsys):
    assert replayed.arms == ("last_value", "markov", NONE)
    assert replayed.raw.shape == replayed.shares.shape == (8, 3, 2)
    assert (np.diff(replayed.spans.start) >= 0).all()
    assert np.isnan(replayed.losses[:, -1]).all()
    assert np.isfinite(replayed.losses[:, :-1]).all()
    answer = predictors_answer(replayed, data="d", seed=1, fast=True)
    again = json.loads(json.dumps(plain(answer), allow_nan=False))
    assert again["jobs"] == 8
    assert again["default"] == "markov"
    assert "ways of choosing" in printed(predictors_report(answer).blocks).lower()


@pytest.mark.slow
def test_the_numbers_are_those_of_the_rounds(replayed):
    answer = predictors_answer(replayed, data="d", seed=1, fast=True)
    for place, policy in enumerate(replayed.policies):
        own = answer["policies"][policy]
        for i, row in enumerate(own["arms"]):
            assert row["mean_utility"] == pytest.approx(replayed.raw[:, i, place].mean())
            assert row["ahead_low"] <= row["ahead"] + 1e-12
        best = next(row for row in own["ways"] if row["way"] == "best in hindsight")
        assert best["mean_utility"] == pytest.approx(replayed.raw[:, :, place].mean(axis=0).max())
        assert sum(row["best_in_markets"] for row in own["arms"]) == answer["markets"]


@pytest.mark.slow
def test_a_forecaster_that_earns_more_is_found_and_accuracy_can_mislead():
    answer = predictors_answer(made_up("combined", 200), data="d", seed=2, fast=False)
    own = answer["policies"]["p"]
    ways = {row["way"]: row["mean_utility"] for row in own["ways"]}
    top = max(row["mean_utility"] for row in own["arms"])
    assert top - ways["blend"] < 0.01
    assert ways["least error so far"] < top - 0.05, "it follows the accurate one, which earns less"
    assert ways["blend"] > ways["exp3 x16"] > np.mean([row["mean_utility"] for row in own["arms"]])
    assert any("choosing by accuracy is worse than choosing by what" in line for line in answer["findings"])
    right = predictors_answer(made_up("markov", 60), data="d", seed=2, fast=False)
    assert any("choosing by accuracy is better than" in line for line in right["findings"])


@pytest.mark.slow  # the quick form: the page and the same again
def test_planning_without_any_forecast_can_be_chosen():
    answer = predictors_answer(made_up(NONE, 120), data="d", seed=2, fast=False)
    ways = {row["way"]: row for row in answer["policies"]["q"]["ways"]}
    assert ways["blend"]["ahead"] > 0.08
    assert ways["least error so far"]["ahead"] < 0.02


def test_the_page_and_the_same_again():
    few = made_up("combined", 24)
    answer = predictors_answer(few, data="d", seed=2, fast=False)
    page = rendered(predictors_report(answer))
    assert len(charts_of(page)) == 2
    assert "10 of 24 jobs" in page
    assert predictors_answer(few, data="d", seed=2, fast=False) == answer
    quick = predictors_report({**answer, "synthetic_jobs": 0, "fast": True})
    assert "a quick look" in quick.about
    assert quick.banner is None


def test_one_forecaster_is_no_choice(tmp_path):
    for models in ((), ("markov",), ("markov", "markov")):
        with pytest.raises(SettingsError, match="at least two"):
            replay_forecasters(tmp_path, models, seed=0, per_cell=1)
