"""The section on published ideas: representatives of families, differences by a slow version, and sentences on the findings."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from slackwater.studies.experiments.material import PoolRun
from slackwater.studies.experiments.pool import (
    COARSE,
    best_of_family,
    idea_columns,
    idea_rows,
    ideas_answer,
    paired,
)

NAMES = (
    "UP",
    "MSU-trim",
    "AHAP(1,1,0.9)",
    "AHAP(2,1,0.9)",
    "Stochastic(24)",
    "Trust(0)",
    "Trust(1)",
    "ROSS(0)",
)


def pool_run(seed: int, lift: dict[str, np.ndarray | float]) -> PoolRun:
    """Return 60 jobs of each of two cells, with policies ``lift`` apart (a number, or one for each cell) plus noise."""
    rng = np.random.default_rng(seed)
    cells = pd.DataFrame(list(itertools.product((10, 20), [0.5], [0.9], range(60))), columns=[*COARSE, "nr"])
    base = rng.normal(0.8, 0.3, len(cells))[:, None]
    cell = (cells["deadline_slots"] == 20).to_numpy(dtype=int)
    utility = base + rng.normal(0, 0.01, (len(cells), len(NAMES)))
    for name, value in lift.items():
        utility[:, NAMES.index(name)] += np.broadcast_to(value, 2)[cell]
    nothing = np.zeros_like(utility)
    return PoolRun(
        jobs=cells.assign(
            unit=2.0, counts=[f"series {i % 30}" for i in range(len(cells))], start=pd.Timestamp(0, tz="UTC")
        ),
        policies=NAMES,
        utility=2.0 * utility,
        cost=nothing,
        on_time=nothing > -1,
        late=nothing > 1,
    )


@pytest.fixture(scope="module")
def answer():
    lift = {"Trust(1)": np.array([0.05, -0.03]), "AHAP(2,1,0.9)": 0.2, "ROSS(0)": -0.1}
    train = pool_run(1, {"Trust(1)": 0.1, "AHAP(1,1,0.9)": 0.1})
    return ideas_answer(pool_run(2, lift), train, rng=np.random.default_rng(0))


def test_members_are_chosen_on_the_training_part(answer):
    """AHAP(2,1) is better on the test jobs, and is not chosen because of it."""
    assert answer["references"] == ["UP", "AHAP(1,1,0.9)", "Stochastic(24)", "MSU-trim"]
    assert [row["policy"] for row in answer["rows"]] == ["Trust(1)", "ROSS(0)"]
    assert set(answer["rows"][0]["members"]) == {"Trust(0)", "Trust(1)"}
    assert best_of_family(pool_run(0, {}), "RHIG") is None


def test_differences_and_cells_by_an_obvious_twin(answer):
    run = pool_run(2, {"Trust(1)": np.array([0.05, -0.03]), "AHAP(2,1,0.9)": 0.2, "ROSS(0)": -0.1})
    found = answer["rows"][0]["against"]["UP"]
    ahead = run.relative[:, NAMES.index("Trust(1)")] - run.relative[:, NAMES.index("UP")]
    assert found["difference"] == pytest.approx(ahead.mean())
    assert found["interval"][0] < found["difference"] < found["interval"][1]
    assert found["difference"] == pytest.approx(0.01, abs=0.005)
    assert (found["cells"], found["won"], found["lost"]) == (2, 1, 1)
    assert found["best_cell"]["deadline_slots"] == 10
    assert found["best_cell"]["difference"] == pytest.approx(ahead[:60].mean())
    assert found["worst_cell"]["difference"] == pytest.approx(ahead[60:].mean())
    ross = answer["rows"][1]["against"]["MSU-trim"]
    assert (ross["verdict"], ross["won"], ross["lost"]) == ("loses", 0, 2)


def test_the_interval_is_that_of_the_paired_mean():
    rng = np.random.default_rng(3)
    values = rng.normal(0.1, 1.0, 400)
    found = paired(values, np.arange(400), rng=rng)
    half = 1.96 * values.std() / 20
    assert found.low == pytest.approx(values.mean() - half, abs=0.02)
    assert found.high == pytest.approx(values.mean() + half, abs=0.02)
    verdicts = [replace(found, low=a, high=b).verdict for a, b in ((0.1, 0.2), (-0.2, -0.1), (-0.1, 0.1))]
    assert verdicts == ["wins", "loses", "even"]


def test_sentences_and_rows_say_what_the_numbers_say(answer):
    trust, ross = (row["sentence"] for row in answer["rows"])
    assert trust.startswith("Trust(1): ahead of UP (+0.0")
    assert "; 1 of 2 cells won, 1 lost)" in trust
    beside = trust.split("Beside AHAP(1,1,0.9) it ")[1]
    assert beside.startswith("gains most at d 10, load 0.5, mu 0.9 (+0.0")
    assert "and loses most at d 20, load 0.5, mu 0.9 (-0.0" in beside
    assert ross.count("behind") == 4
    assert "gains" not in ross
    rows = idea_rows({"published_ideas": answer})
    columns = idea_columns(answer["references"])
    assert set(columns) == set(rows[0])
    assert rows[0]["cells UP"] == "1 : 1 of 2"
    assert rows[1]["over UP"].startswith("-0.1")


def test_a_pool_without_them_has_an_empty_section():
    run = pool_run(4, {})
    few = replace(run, policies=NAMES[:5], utility=run.utility[:, :5])
    found = ideas_answer(few, few, rng=np.random.default_rng(0))
    assert found["rows"] == []
    assert len(found["references"]) == 4
