"""Rules, memory and trees (M9.3)."""

from dataclasses import astuple

import numpy as np
import pytest
from configuration_kit import MEMORY, configuration, made_up_labels

from slackwater.forecasting.configurations.facts import TEXTBOOK, calibrate_memory, memory_parts
from slackwater.forecasting.configurations.validity import (
    LABELS_FILE,
    ValidityModel,
    fit_classifier,
    identity,
    label_configurations,
    read_labels,
)
from slackwater.warehouse.errors import SourceFileError


@pytest.fixture(scope="module")
def labels():
    return made_up_labels()


@pytest.fixture(scope="module")
def model(labels):
    asked = label_configurations(labels)
    memory = calibrate_memory(memory_parts(asked), labels["p_valid"].to_numpy())
    classifier = fit_classifier(asked, labels["p_valid"].to_numpy(), memory=memory, seed=1)
    return ValidityModel(classifier=classifier, ran=frozenset({identity(configuration(batch_size=128))}))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch_size": 15}, "batch size 15 is not divisible by 2 GPUs"),
        ({"number_gpus": 4, "number_nodes": 3}, "4 GPUs are not divisible by 3 nodes"),
        ({"model_name": "granite-20b-v2", "tokens_per_sample": 16384}, "table of 8192 positions"),
        ({"method": "gptq-lora", "torch_dtype": "bfloat16"}, "float16 only"),
        ({"gpu_model": "Tesla-T4", "torch_dtype": "bfloat16"}, "no bfloat16"),
    ],
)
def test_rules_come_first_and_say_why(model, changes, said):
    answer = model.judge([configuration(**changes)])[0]
    assert not answer.valid
    assert (answer.decided_by, answer.p_valid, answer.memory_gb) == ("rule", 0.0, None)
    assert said in answer.reason


def test_rotary_models_may_run_beyond_their_training_length(model):
    assert (
        model.judge([configuration(model_name="llama-7b", tokens_per_sample=8192, batch_size=2)])[
            0
        ].decided_by
        != "rule"
    )


def test_states_that_exceed_the_gpu_decide_whatever_the_trees_say(model):
    answer = model.judge(
        [configuration(model_name="llama2-70b", number_gpus=1, batch_size=1, tokens_per_sample=512)]
    )[0]
    assert (answer.valid, answer.decided_by) == (False, "memory")
    assert "138 GB" in answer.reason
    assert answer.limit_gb == 80


def test_trees_decide_inside_the_labels_and_memory_outside(model):
    inside, outside = model.predict([configuration(), configuration(tokens_per_sample=16384, batch_size=2)])
    assert (inside.decided_by, inside.outside) == ("classifier", ())
    assert outside.decided_by == "memory"
    assert outside.outside == ("tokens_per_sample 16384 lies outside the labels' 512 to 8192",)
    other = model.predict([configuration(gpu_model="NVIDIA-A100-SXM4-40GB")])[0]
    assert other.decided_by == "memory"
    assert "NVIDIA-A100-SXM4-40GB" in other.outside[0]
    assert (
        model.predict([configuration(model_name="ours@7b")])[0].decided_by == "classifier"
    )  # by shape alone
    assert model.predict([]) == []


def test_what_ran_is_valid(model):
    ran = configuration(batch_size=128, tokens_per_sample=2048)
    assert not model.predict([ran])[0].valid
    assert (model.judge([ran])[0].valid, model.judge([ran])[0].decided_by) == (True, "measured")


def test_memory_grows_with_tokens_and_is_shared_by_gpus():
    asked = [
        configuration(batch_size=4),
        configuration(batch_size=8),
        configuration(batch_size=8, number_gpus=4),
    ]
    states = memory_parts(asked).states_gb
    assert states[0] == states[1] == 2 * states[2]
    peak = TEXTBOOK.peak_gb(memory_parts([configuration(batch_size=4), configuration(batch_size=8)]))
    assert peak[1] > peak[0]


def test_calibration_finds_planted_constants(labels):
    parts = memory_parts(label_configurations(labels))
    found = calibrate_memory(parts, labels["p_valid"].to_numpy())
    np.testing.assert_allclose(astuple(found)[:3], astuple(MEMORY)[:3], rtol=0.35)
    agreed = (found.log_odds(parts) > 0) == (labels["predicted_valid"] == 1).to_numpy()
    assert agreed.mean() > 0.97


def test_labels_that_cannot_be_read_are_named(tmp_path, labels):
    with pytest.raises(SourceFileError, match="name the folder"):
        read_labels(tmp_path)
    (tmp_path / LABELS_FILE).write_bytes(b"no table")
    with pytest.raises(SourceFileError, match="no table"):
        read_labels(tmp_path)
    labels.drop(columns="p_valid").to_parquet(tmp_path / LABELS_FILE)
    with pytest.raises(SourceFileError, match="p_valid are missing"):
        read_labels(tmp_path)
    labels.assign(p_valid=1.5).to_parquet(tmp_path / LABELS_FILE)
    with pytest.raises(SourceFileError, match="outside 0 to 1"):
        read_labels(tmp_path)
