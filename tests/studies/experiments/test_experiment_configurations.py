"""Experiment ``configurations``: models left out, the learning curve, labels, and the published failure rates (M9.2, M9.3)."""

import json

import numpy as np
import pytest
from command_kit import call
from configuration_kit import (
    MEMORY,
    PCIE,
    REAL,
    SXM,
    made_up_folder,
    made_up_labels,
    made_up_runs,
    made_up_statistics,
)
from page_kit import charts_of

from slackwater.forecasting.configurations.model import fit_configurations
from slackwater.forecasting.configurations.runs import read_runs
from slackwater.forecasting.configurations.scores import errors
from slackwater.forecasting.configurations.validity import read_labels
from slackwater.studies.experiments.configuration_scores import (
    SPLITS,
    StudyEffort,
    failure_rates,
    impossible_labels,
    label_errors,
    learning_curve,
    measured_said_valid,
    models_left_out,
    rebuilt_grid,
)


@pytest.fixture(scope="module")
def labels():
    return made_up_labels()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_up_folder(tmp_path_factory.mktemp("finetune"))


def test_one_command_measures_and_draws(folder, tmp_path):
    page = tmp_path / "page.html"
    code, out, _ = call(
        "experiment", "configurations", "--data", folder, "--html", page, "--fast", "--json", "--seed", 3
    )
    assert code == 0
    answer = json.loads(out)
    assert answer["runs"] == len(made_up_runs())
    assert [row["what"] for row in answer["summary"]][:2] == [
        "configurations never seen",
        "models never seen",
    ]
    assert [row["rows"] for row in answer["learning_curve"]][:1] == [50]
    assert {row["held_out"] for row in answer["validity"]} >= {"grid points", "whole models"}
    assert any("SYNTHETIC" in note for note in answer["notes"])
    text = page.read_text()
    assert len(charts_of(text)) == 5
    assert "synthetic" in text


@pytest.mark.slow  # the quick form: the validity in the answer of the command, above
def test_trees_are_scored_on_labels_they_did_not_see(labels, folder):
    found = {row["held_out"]: row for row in label_errors(labels, rng=np.random.default_rng(0))}
    assert found["grid points"]["classifier"] < 0.1
    for row in found.values():
        assert row["classifier"] == pytest.approx(row["invalid_said_valid"] + row["valid_said_invalid"])
    shuffled = labels.assign(
        p_valid=np.random.default_rng(4).permutation(labels["p_valid"]),
        predicted_valid=lambda f: (f["p_valid"] > 0.5) * 1,
    )  # meaningless labels cannot be predicted
    lost = label_errors(shuffled, rng=np.random.default_rng(0), splits=SPLITS[:1])[0]
    assert lost["classifier"] > 0.35
    said = measured_said_valid(made_up_runs(), fit_configurations(folder, seed=1).checks)
    assert said[-1]["runs"] == len(made_up_runs())


def test_labels_that_cannot_be_are_counted(labels):
    wrong = labels.assign(predicted_valid=1)
    alone = (
        (wrong["model_name"] == "llama2-70b") & (wrong["gpu_model"] == "L40S") & (wrong["number_gpus"] <= 2)
    )
    beyond = alone | (
        (wrong["model_name"] == "llama2-70b") & (wrong["gpu_model"] == SXM) & (wrong["number_gpus"] == 1)
    )
    assert impossible_labels(wrong) == {"labels": int(beyond.sum()), "called_valid": int(beyond.sum())}


def test_the_grid_is_rebuilt_from_its_margins():
    shares = np.array([0.2, 0.25, 0.25, 0.2, 0.06, 0.04])
    statistics = made_up_statistics(shares)
    grid = rebuilt_grid(statistics)
    assert grid.shares.sum() == pytest.approx(1)
    assert grid.other_rejections == pytest.approx(0)
    np.testing.assert_allclose(grid.shares.sum(axis=(0, 1, 3, 4)), shares, atol=2e-3)
    np.testing.assert_allclose(grid.shares.sum(axis=(0, 2, 3, 4)), [0.9, 0.06, 0.03, 0.01], atol=1e-3)
    assert grid.shares[:, 3, 1:].sum() == 0  # one GPU at most on H100-PCIe
    rejected = (grid.shares * ~grid.divisible[None, None, :, None, :]).sum(
        axis=(0, 1, 2, 3)
    ) / grid.shares.sum(axis=(0, 1, 2, 3))
    assert rejected[0] == pytest.approx(0.8, abs=0.01)


def test_rates_of_a_boundless_memory_are_the_rejections():
    endless = type(MEMORY)(
        kept_full=1e-9, kept_adapter=1e-9, logit_bytes=1e-9, base_gb=1e-9, gathered=1e-9, sharpness=500.0
    )
    rates = failure_rates(made_up_statistics(), made_up_runs().assign(gpu_model=SXM), endless)
    by = rates.set_index(["rate", "factor", "level"])["reproduced"]
    assert by["failure_rate", "total_batch_size", "1"] == pytest.approx(
        by["rejected_rate", "total_batch_size", "1"], abs=11
    )
    assert by["valid_rate", "gpu_model", "A100-SXM"] > 60
    assert rates["difference"].tolist() == pytest.approx((rates["reproduced"] - rates["published"]).tolist())
    assert PCIE not in set(rates["level"])


def test_the_learning_curve_learns():
    curve = learning_curve(
        made_up_runs(), rng=np.random.default_rng(2), effort=StudyEffort(curve_repeats=1, iterations=6), sizes=(12, 60, 10_000)
    )  # fmt: skip
    assert curve["rows"].tolist()[:2] == [12, 60]
    assert len(curve) == 3  # a size beyond the training part is left out
    assert curve["mdape"].iloc[-1] < 0.5 * curve["mdape"].iloc[0]


needs_data = pytest.mark.skipif(not REAL.is_dir(), reason=f"no measurements at {REAL}: set SLACKWATER_DATA")


@needs_data
@pytest.mark.slow
def test_throughput_of_real_models_never_seen():
    left = models_left_out(read_runs(REAL), effort=StudyEffort(iterations=10, least_rows=30))
    found = errors(left)
    assert found["mdape"] <= 0.12
    assert found["coverage"] >= 0.85


@needs_data
@pytest.mark.slow
def test_validity_of_published_labels_never_seen():
    """Required: at most 8.4 % on held-out labels (SYNTHETIC); unseen models are harder and have a separate bound."""
    found = {
        r["held_out"]: r["classifier"] for r in label_errors(read_labels(REAL), rng=np.random.default_rng(5))
    }
    assert found["grid points"] <= 0.05
    assert found["pairs of model and GPU"] <= 0.084
    assert found["whole models"] <= 0.14
