"""Cleaning of measured runs, and hold-out splits (M9.2)."""

import numpy as np
import pandas as pd
import pytest
from configuration_kit import SXM, made_up_runs

from slackwater.forecasting.configurations.facts import features
from slackwater.forecasting.configurations.runs import (
    COLUMNS,
    IDENTITY,
    RUNS_FILE,
    configurations_of,
    read_runs,
    runs_frame,
)
from slackwater.forecasting.configurations.scores import errors, folds
from slackwater.forecasting.configurations.throughput import fit_law, log_rate
from slackwater.warehouse.errors import InputError, SourceFileError


def written(folder, frame):
    frame.to_csv(folder / RUNS_FILE, index=False)
    return folder


def test_rows_with_four_times_the_tokens_are_left_out(tmp_path):
    frame = made_up_runs()
    frame.loc[0, "suspect_token_accounting"] = 1
    frame.loc[1, ["tokens_per_second", "passes"]] = [1e6, 4.1]  # not flagged, but beyond the GPU's peak
    frame.loc[2, ["tokens_per_second", "passes"]] = [
        1e6,
        1.0,
    ]  # also beyond the peak, but without that fault: it stays
    runs = read_runs(written(tmp_path, frame))
    assert runs.attrs["left_out"] == 2
    assert len(runs) == len(frame) - 2
    assert runs["tokens_per_second"].iloc[0] == 1e6


def test_unknown_number_formats_are_the_usual_ones_and_capped_rows_stay(tmp_path):
    frame = made_up_runs()
    frame["torch_dtype"] = None
    frame.loc[0, "passes"] = 0.4
    runs = read_runs(written(tmp_path, frame))
    assert set(runs["torch_dtype"]) == {"bfloat16"}
    assert runs["capped"].sum() == 1
    assert list(runs.columns) == list(COLUMNS)


def test_what_cannot_be_read_is_named(tmp_path):
    with pytest.raises(SourceFileError, match="name the folder"):
        read_runs(tmp_path)
    with pytest.raises(SourceFileError, match="passes are missing"):
        read_runs(written(tmp_path, made_up_runs().drop(columns="passes")))
    frame = made_up_runs()
    frame.loc[4, "tokens_per_second"] = -1
    with pytest.raises(SourceFileError, match=r"line 6: tokens_per_second is -1"):
        read_runs(written(tmp_path, frame))
    (tmp_path / RUNS_FILE).write_bytes(b"")
    with pytest.raises(SourceFileError, match="no table"):
        read_runs(tmp_path)


def test_reported_runs_take_the_usual_values_and_are_checked():
    row = {
        "model_name": "ours@3b", "method": "lora", "gpu_model": SXM, "number_gpus": 2, "tokens_per_sample": 512, "batch_size": 8,
        "tokens_per_second": 4000.0,
    }  # fmt: skip
    runs = runs_frame([row])
    assert runs.loc[0, ["number_nodes", "torch_dtype", "source"]].tolist() == [1, "bfloat16", "reported"]
    assert configurations_of(runs)[0].model_name == "ours@3b"
    for bad in (
        {"tokens_per_second": 0.0},
        {"model_name": "ours"},
        {"gpu_model": "none"},
        {"method": "none"},
    ):
        with pytest.raises(InputError):
            runs_frame([{**row, **bad}])
    with pytest.raises(InputError, match="batch_size"):
        runs_frame([{k: v for k, v in row.items() if k != "batch_size"}])


def test_repeats_of_a_configuration_are_never_on_both_sides():
    runs = pd.concat([made_up_runs(), made_up_runs(seed=9)], ignore_index=True)
    seen = []
    for train, test in folds(runs, rng=np.random.default_rng(1), parts=5):
        keys = [set(map(tuple, runs.iloc[rows][list(IDENTITY)].to_numpy())) for rows in (train, test)]
        assert not keys[0] & keys[1]
        seen.extend(test)
    assert sorted(seen) == list(range(len(runs)))


def test_errors_are_relative_to_what_was_measured():
    scored = pd.DataFrame(
        {"tokens_per_second": [100.0, 200, 400], "predicted": [110.0, 180, 400], "low": [90.0, 170, 401], "high": [130.0, 190, 500]}
    )  # fmt: skip
    found = errors(scored)
    assert found["mdape"] == pytest.approx(0.1)
    assert found["mape"] == pytest.approx(0.2 / 3)
    assert found["coverage"] == pytest.approx(1 / 3)


def test_the_law_is_found_again_from_runs_without_offsets():
    runs = made_up_runs(noise=0.0)
    f = features(configurations_of(runs))
    truth = log_rate(np.array([-0.7, -1.1, -0.9, 0.5, -0.5, -0.3, 1.5, 1.0]), f)
    np.testing.assert_allclose(log_rate(fit_law(f, truth), f), truth, atol=0.02)


def test_the_law_saturates_at_the_gpus_peak_and_never_exceeds_it():
    base = {
        "model_name": "mistral-7b-v0.1",
        "method": "full",
        "gpu_model": SXM,
        "number_gpus": 2,
        "tokens_per_sample": 2048,
    }
    runs = runs_frame([{**base, "batch_size": 2**k, "tokens_per_second": 1.0} for k in range(1, 14)])
    f = features(configurations_of(runs))
    rate = log_rate(np.array([-0.8, -1.0, -0.85, 0.7, -1.0, -0.5, 1.8, 1.2]), f)
    assert (np.diff(rate) > 0).all()
    ceiling = np.log(np.exp(-0.8) * f.tokens / f.compute_s)
    assert (rate < ceiling).all()
    assert ceiling[-1] - rate[-1] < 0.01 < ceiling[0] - rate[0]
