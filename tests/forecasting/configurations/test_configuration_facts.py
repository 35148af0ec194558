"""Facts of models and GPUs, and the value types of configurations (M9.1)."""

import pytest
from configuration_kit import configuration

from slackwater.forecasting.configurations.facts import (
    architecture,
    features,
    flop_per_token,
    gpu,
    known_gpus,
    known_models,
)
from slackwater.warehouse.errors import InputError

#: Parameters in billions as printed on the model cards.
PUBLISHED = {
    "llama-7b": 6.74, "llama-13b": 13.02, "llama2-70b": 68.98, "llama3-8b": 8.03, "llama3.1-70b": 70.55, "llama3.1-405b": 405.85,
    "llama3.2-3b": 3.21, "mistral-7b-v0.1": 7.24, "mistral-123b-v2": 122.6, "mixtral-8x7b-instruct-v0.1": 46.7,
    "granite-3.1-2b": 2.53, "granite-3.1-8b-instruct": 8.17, "granite-3.1-3b-a800m-instruct": 3.30, "granite-34b-code-base": 33.7,
    "granite-20b-v2": 20.1, "granite-4.0-350m": 0.352, "granite-4.0-micro": 3.4,
}  # fmt: skip


def counted_params_b(shape):
    """Return the parameters in billions counted from the shape (attention, feed-forward, embeddings); not for hybrids."""
    width, head = shape.width, shape.width // shape.heads
    attention = 2 * width * width + 2 * width * shape.key_heads * head
    block = attention + shape.matrices * width * shape.feed_forward * shape.experts
    embedding = shape.vocabulary * width * (1 if shape.tied else 2)
    return (shape.layers * block + embedding) / 1e9


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_shape_of_a_model_counts_its_published_parameters(name):
    assert counted_params_b(architecture(name)) == pytest.approx(PUBLISHED[name], rel=0.015)
    assert architecture(name).params_b == pytest.approx(PUBLISHED[name], rel=0.015)


def test_every_entry_of_the_files_is_possible():
    for shape in known_models().values():
        assert 0 < shape.active_b <= shape.params_b
        assert shape.width % shape.heads == 0
    for device in known_gpus().values():
        assert device.source
        assert device.memory_gb_s > device.link_gb_s


@pytest.mark.parametrize("size", [0.5, 1.5, 7, 34, 70, 180])
def test_a_shape_is_assumed_from_a_size(size):
    shape = architecture(f"ours@{size}b")
    assert shape.assumed
    assert shape.params_b == size
    assert counted_params_b(shape) == pytest.approx(size, rel=0.35)


@pytest.mark.parametrize(
    ("name", "said"), [("llama3.1-9b", "llama3.1-9b@7.2b"), ("x@7200b", "0.05 to 2000"), ("x@", "x@7.2b")]
)
def test_a_model_without_a_size_is_refused_with_the_way_to_give_one(name, said):
    with pytest.raises(InputError, match=said):
        architecture(name)


def test_a_gpu_without_peak_figures_is_refused():
    with pytest.raises(InputError, match=r"AMD-MI300X.*gpus\.toml"):
        gpu("AMD-MI300X")


@pytest.mark.parametrize(
    "changes", [{"method": "dora"}, {"number_gpus": 0}, {"batch_size": 1.5}, {"tokens_per_sample": True}]
)
def test_impossible_configurations_are_refused(changes):
    with pytest.raises(InputError, match=next(iter(changes)).split("_")[0]):
        configuration(**changes)


def test_the_usual_number_format_follows_method_and_gpu():
    assert configuration().dtype == "bfloat16"
    assert configuration(method="gptq-lora").dtype == "float16"
    assert configuration(gpu_model="Tesla-V100-SXM2-16GB").dtype == "float16"
    assert configuration(torch_dtype="float32").dtype == "float32"


def test_flops_of_a_token_are_six_or_four_per_parameter_and_attention():
    full, adapter = flop_per_token(configuration(method="full")), flop_per_token(configuration())
    assert full - adapter == pytest.approx(2 * architecture("mistral-7b-v0.1").params_b * 1e9)
    attention = 6 * 32 * 4096 * 2048
    assert full == pytest.approx(6 * architecture("mistral-7b-v0.1").params_b * 1e9 + attention)


def test_weights_move_between_gpus_only_where_there_are_several():
    f = features([configuration(number_gpus=1), configuration(number_gpus=4)])
    assert f.gather_s[0] == 0 < f.gather_s[1]
    assert f.tokens[0] == 4 * f.tokens[1] == 16 * 2048
