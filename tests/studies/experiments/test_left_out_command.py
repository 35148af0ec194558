"""Test ``slackwater experiment left-out``: models are selected on the earlier half of the record only."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_kit import call, printed
from tidy_folder import write_tidy

from slackwater.flows.accuracy.command import AccuracyOptions
from slackwater.flows.accuracy.report import course_of, read_measured
from slackwater.flows.accuracy.units import BacktestPlan
from slackwater.flows.command import Session
from slackwater.flows.show.formats import as_json
from slackwater.studies.experiments.left_out import choose_models, earlier_course, left_out_study

#: Models that are fitted on their own market alone.
OWN = ("last_value", "seasonal_naive", "markov")
#: Long enough for several fits in either half.
DAYS = 5


def measured(folder: Path) -> BacktestPlan:
    options = AccuracyOptions(models=OWN, variable="count", horizon=4)
    session = Session(data=folder)
    series = read_measured(options, session.config, session)
    return course_of(series, options, session.config, keep=None)


def choices(course: BacktestPlan) -> dict[str, tuple[str, float]]:
    made = choose_models(course, by="zone", processes=1)
    rows = made.choices[made.choices["class"] == "16 and more"]
    return {row["left_out"]: (row["model"], row["skill"]) for row in rows.to_dict("records")}


def scrambled(folder: Path, to: Path, zone: str) -> Path:
    """Copy the folder, with the earlier half of a zone and the later halves of all zones permuted."""
    write_tidy(to, days=DAYS)
    table = pd.read_parquet(folder / "availability.parquet")
    rng = np.random.default_rng(8)
    for name, own in table.groupby("zone"):
        half = len(own) // 2
        parts = (
            (own.index[half + 6 : -1], own.index[1 : half - 6])
            if name == zone
            else (own.index[half + 6 : -1],)
        )
        for part in parts:
            table.loc[part, "available"] = rng.permutation(table.loc[part, "available"].to_numpy())
    table.to_parquet(to / "availability.parquet")
    return to


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_tidy(tmp_path_factory.mktemp("tidy"), days=DAYS)


@pytest.fixture(scope="module")
def course(folder) -> BacktestPlan:
    return measured(folder)


def test_the_earlier_halves_hold_nothing_of_the_later_ones(course):
    earlier = earlier_course(course)
    for panel, before, origins, first in zip(
        course.rolling.panels,
        earlier.rolling.panels,
        earlier.rolling.origins,
        course.rolling.origins,
        strict=True,
    ):
        for series, half, own, later in zip(panel.series, before.series, origins, first, strict=True):
            # all values known at the first later origin, but none of its targets
            assert len(half) == later[0] + 1
            assert half.key == series.key
            np.testing.assert_array_equal(half.values, series.values[: len(half)])
            assert own.size
            assert own[-1] < len(half) - 1


@pytest.mark.slow  # the quick form: neither the own past nor anything later is in the choice, in test_left_out.py
@pytest.mark.parametrize("zone", ["z1", "z2"])
def test_the_choice_stays_when_the_own_past_and_all_later_halves_are_scrambled(
    folder, course, tmp_path, zone
):
    before, after = choices(course), choices(measured(scrambled(folder, tmp_path / "scrambled", zone)))
    assert before[f"lab/r1/{zone}"] == after[f"lab/r1/{zone}"]
    assert before != after


def test_the_answer_has_choices_and_classes_and_reads_what_is_kept(folder, tmp_path):
    kept = tmp_path / "kept"
    words = (
        "--model",
        "markov",
        "--model",
        "seasonal_naive",
        "--variable",
        "count",
        "--horizon",
        4,
        "--workers",
        1,
    )
    code, out, err = call("experiment", "left-out", "--data", folder, *words, "--keep", kept, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["by"] == "zone"
    assert {row["left_out"] for row in found["choices"]} == {
        f"lab/r1/{zone}" for zone in ("z1", "z2", "z3", "z9")
    }
    code, out, err = call("accuracy", "--data", folder, *words, "--keep", kept, "--json")
    assert code == 0, err
    accuracy = json.loads(out)
    for row in found["classes"]:
        if row["choice"] != "default":
            continue
        same = [
            own for own in accuracy["classes"]
            if (own["class"], own["step"], own["model"]) == (row["class"], row["step"], accuracy["default"])
        ]  # fmt: skip
        assert row["skill_pinball"] == pytest.approx(same[0]["skill_pinball"])
        assert row["coverage_80"] == pytest.approx(same[0]["coverage_80"])
    files = {path: path.stat().st_mtime_ns for path in kept.rglob("*.parquet")}
    assert files
    options = AccuracyOptions(
        models=("markov", "seasonal_naive"), variable="count", horizon=4, keep=kept, workers=1
    )
    again = left_out_study(options, Session(data=folder), by="zone")
    assert json.loads(as_json(again.value)) == found
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*.parquet")} == files
    assert "Models chosen with each zone left out" in printed(again.blocks)


@pytest.mark.slow
def test_the_page_has_it_too(folder, tmp_path):
    page = tmp_path / "page.html"
    words = ("--data", folder, "--model", "markov", "--variable", "count", "--workers", 1, "--horizon", 4)
    code, _, err = call("experiment", "left-out", *words, "--html", page)
    assert code == 0, err
    assert "Models chosen with each zone left out" in page.read_text(encoding="utf-8")


def test_what_cannot_be_left_out_is_refused(folder):
    code, _, err = call("experiment", "left-out", "--data", folder, "--by", "country")
    assert code == 2
    assert "one of zone, source" in err
