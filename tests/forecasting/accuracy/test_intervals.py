"""Verdicts on comparisons: the meaning of an interval, and the least number of blocks."""

import numpy as np
import pandas as pd
import pytest

from slackwater.forecasting.accuracy.intervals import (
    EVEN,
    LEAST_BLOCKS,
    TOO_FEW,
    block_interval,
    interval_words,
    skills_by_block,
    verdict,
)
from slackwater.forecasting.predictors import FLOOR
from slackwater.studies.trials.comparison import resampled


def test_a_difference_inside_its_interval_is_even():
    assert verdict(0.1, 0.2, above="wins") == "wins"
    assert verdict(-0.2, -0.1, below="cheaper") == "cheaper"
    assert verdict(-0.1, 0.1) == verdict(0.0, 0.1) == EVEN
    assert verdict(np.nan, np.nan) == TOO_FEW


@pytest.mark.parametrize("blocks", [1, LEAST_BLOCKS - 1, LEAST_BLOCKS, LEAST_BLOCKS + 4])
def test_every_interval_begins_at_the_same_number_of_blocks(blocks):
    """The skill of forecasts and the bootstrap of experiments give no verdict below the same bound."""
    rng = np.random.default_rng(1)
    floor = rng.uniform(1.0, 2.0, (blocks, 1))
    low, high = block_interval(floor * rng.uniform(0.4, 0.6, (blocks, 1)), floor)
    drawn = resampled(floor, blocks=list(range(blocks)), rng=rng, repeats=200).interval()
    known = blocks >= LEAST_BLOCKS
    assert [bool(np.isfinite(ends).all()) for ends in ((low, high), drawn)] == [known, known]
    assert (verdict(float(low[0]), float(high[0])) == TOO_FEW) is not known
    assert ("too few" in interval_words(float(low[0]), float(high[0]))) is not known


def test_skills_by_block_are_those_of_arrays():
    rng = np.random.default_rng(2)
    loss, floor = rng.gamma(2.0, 1.0, (2, 9, 4))
    rows = pd.DataFrame(
        {"model": "m", "step": np.tile(np.arange(4), 9), "day": np.repeat(np.arange(9), 4), "loss": loss.ravel(),
         "floor": floor.ravel()}
    )  # fmt: skip
    found = skills_by_block(pd.concat([rows, rows]), ["model", "step"])
    low, high = block_interval(2 * loss, 2 * floor)
    assert np.allclose(found["skill_low"], low)
    assert np.allclose(found["skill_high"], high)
    assert found["days"].eq(9).all()
    own = skills_by_block(rows.assign(model="last_value", floor=rows["loss"]), ["model", "step"])
    assert own["verdict"].eq("").all()
    assert own["skill_low"].isna().all()


def test_a_day_on_which_neither_erred_is_no_block():
    loss, floor = np.array([[1.0], [2.0], [0.0], [0.0]]), np.array([[2.0], [3.0], [0.0], [0.0]])
    assert np.isnan(block_interval(loss, floor)[0]).all()


def test_the_model_that_others_are_compared_with_is_the_floor():
    rows = pd.DataFrame({"model": [FLOOR] * 4, "day": range(4), "loss": 1.0, "floor": 1.0})
    assert skills_by_block(rows, ["model"]).loc[FLOOR, "verdict"] == ""
