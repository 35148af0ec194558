"""Test ``slackwater init``: it writes a settings file in which every setting is explained and commented out."""

from __future__ import annotations

import re

import pytest
from command_kit import call

from slackwater.flows.config import AlarmSettings, BoundSettings, Settings, commented_settings, read_settings
from slackwater.flows.renting.rent import read_types
from slackwater.flows.schemas.command import AUTOMATIONS_FILE, DEPLOYMENTS_FILE
from slackwater.forecasting.predictors import DEFAULT, PREDICTORS
from slackwater.optimization.job.request import JobRequest, read_request
from slackwater.optimization.requests.request import read_tuning_request

LINES = commented_settings().splitlines()
#: Lines of settings without their "# "; explanations remain comments.
UNCOMMENTED = "\n".join(re.sub(r"^# ", "", line) for line in LINES[1:])


def test_as_it_is_written_it_changes_nothing(tmp_path):
    path = tmp_path / "slackwater.toml"
    assert call("init", "--out", path, "--json").value == {"settings": str(path)}
    assert all(not line or line.startswith("#") for line in path.read_text().splitlines())
    assert read_settings(path) == Settings.model_validate({})


def test_with_every_comment_taken_off_it_says_the_defaults(tmp_path):
    path = tmp_path / "slackwater.toml"
    path.write_text(UNCOMMENTED)
    read = read_settings(path)
    assert read.model_copy(
        update={"on_demand": (), "feeds": (), "sinks": (), "drivers": (), "alerts": ()}
    ) == Settings.model_validate({})
    assert [(feed.name, feed.source) for feed in read.feeds] == [("us-east", "aws-spot")]
    assert [(one.market, one.usd) for one in read.on_demand] == [("aws/us-east-1/*/p4d.24xlarge", 21.96)]
    assert [sink.kind for sink in read.sinks] == ["file"]
    assert [driver.kind for driver in read.drivers] == ["ec2"]


def test_every_setting_stands_there_with_what_it_means():
    text = "\n".join(LINES)
    for model in (Settings, AlarmSettings, BoundSettings):
        for name, field in model.model_fields.items():
            assert re.search(rf"^# (# )?\[?\[?{name}\b", text, re.MULTILINE), name
            assert (
                name in ("alarms", "bounds", "retention")
                or re.sub(r" \(M[\d.]+\)", "", str(field.description)) in text
            )
    assert not re.search(r"\bM\d", text), "no rule numbers where there is no page of rules"


def test_every_forecaster_of_the_package_is_measured_by_default():
    assert Settings().models == tuple(PREDICTORS)
    assert Settings().planner == DEFAULT


def test_one_setting_is_changed_by_its_line(tmp_path):
    path = tmp_path / "slackwater.toml"
    path.write_text(
        commented_settings().replace(f"# risk_paths = {Settings().risk_paths}", "risk_paths = 250")
    )
    assert read_settings(path).risk_paths == 250


def test_a_job_file_has_every_key_and_each_of_its_lines_is_valid(tmp_path):
    path = tmp_path / "job.toml"
    assert call("init", "--job", "--out", path, "--json").value == {"job": str(path)}
    lines = path.read_text().splitlines()
    assert read_request(path).value_usd is None, "a hard deadline"
    for name in JobRequest.model_fields.keys() - {"deadline", "gpus_min", "gpus_max", "configuration"}:
        assert re.search(rf"^(# )?\[?{name}\b", "\n".join(lines), re.MULTILINE), name
    keys = [number for number, line in enumerate(lines) if re.match(r"# (\w+ = |\[)", line)]
    for number in keys:
        if lines[number].startswith("# ["):
            break
        path.write_text("\n".join([*lines[:number], lines[number][2:], *lines[number + 1 :]]))
        read_request(path)
    path.write_text("\n".join([*lines[:number], *(line.removeprefix("# ") for line in lines[number:])]))
    assert read_request(path).moving is not None
    assert call("init", "--job", "--deployments", "--out", tmp_path / "other").code == 2


@pytest.mark.parametrize(
    ("option", "command", "words"), [("request", "fill", ()), ("types", "rent", ("--budget", "24"))]
)
def test_an_example_file_is_written_that_the_named_command_reads(tmp_path, option, command, words):
    path = tmp_path / f"{option}.toml"
    assert call("init", f"--{option}", "--out", path, "--json").value == {option: str(path)}
    reader = {"fill": read_tuning_request, "rent": read_types}[command]
    assert reader(path)
    again = tmp_path / "again.toml"
    assert f"`slackwater {command} {again}" in " ".join(
        call("init", f"--{option}", "--out", again).out.split()
    )
    missing = call(command, tmp_path / "none.toml", *words)
    assert f"slackwater init --{option}" in missing.err


def test_the_deployments_are_written_as_they_come_with_the_program(tmp_path):
    path, beside = tmp_path / "prefect.yaml", tmp_path / "automations.yaml"
    told = call("init", "--deployments", "--out", path, "--json").value
    assert told == {"deployments": str(path), "automations": str(beside)}
    assert path.read_bytes() == DEPLOYMENTS_FILE.read_bytes()
    assert beside.read_bytes() == AUTOMATIONS_FILE.read_bytes()
    assert call("init", "--deployments", "--out", path).code == 2
    path.unlink()
    assert call("init", "--deployments", "--out", path).code == 2, "the other one is there"
    assert not path.exists()


@pytest.mark.parametrize("name", ["there.toml", "no/such/folder.toml"])
def test_a_file_that_is_there_stays_and_one_that_cannot_be_is_told(tmp_path, name):
    (tmp_path / "there.toml").write_text("risk_paths = 99\n")
    called = call("init", "--out", tmp_path / name)
    assert called.code == 2
    assert len(called.err.strip().splitlines()) == 1
    assert (tmp_path / "there.toml").read_text() == "risk_paths = 99\n"
