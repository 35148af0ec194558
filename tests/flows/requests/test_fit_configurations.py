"""The `slackwater fit-configurations` command: its answer, file, page and errors (M9.2, M9.3)."""

import json

import pytest
from command_kit import call
from configuration_kit import configuration, made_up_folder, made_up_runs
from page_kit import charts_of

from slackwater.forecasting.configurations.model import load_configurations


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return made_up_folder(tmp_path_factory.mktemp("finetune"))


def test_one_command_fits_measures_keeps_and_draws(folder, tmp_path):
    model, page = tmp_path / "model.zip", tmp_path / "page.html"
    code, out, err = call(
        "fit-configurations", folder, "--out", model, "--html", page, "--fast", "--json", "--seed", 3
    )
    assert code == 0
    assert "fit on" in err
    answer = json.loads(out)
    assert answer["runs"] == len(made_up_runs())
    unseen = answer["summary"][0]
    assert 0 < unseen["mdape"] < 6  # the synthetic runs follow the model up to an offset and 1 % noise
    assert 70 < unseen["coverage"] <= 100
    assert sum(row["rows"] for row in answer["by_group"]) == answer["runs"]
    assert [row["what"] for row in answer["summary"]] == ["configurations never seen"]
    assert load_configurations(model).predict([configuration()])[0].tokens_per_second > 0
    text = page.read_text()
    assert len(charts_of(text)) == 3


def test_what_is_missing_is_one_line_and_exit_code_two(folder, tmp_path):
    code, out, err = call("fit-configurations", tmp_path, "--out", tmp_path / "model.zip")
    assert (code, out) == (2, "")
    assert "ft_throughput.csv" in err
    assert "name the folder that holds it" in err
    assert not (tmp_path / "model.zip").exists()
    (tmp_path / "file").write_text("")
    code, _, err = call("fit-configurations", folder, "--out", tmp_path / "file" / "model.zip")
    assert code == 2
    assert "choose another path" in err
