"""Policies, predictors and sources of other packages go through the same commands as ours."""

import sys

import pandas as pd
import pytest
from command_kit import call
from test_stale import JOB, LAST, MARKET
from test_turn import small_settings
from tidy_folder import write_tidy

from slackwater.forecasting.predictors import make_predictor
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.warehouse.errors import SettingsError

MINE = """
from dataclasses import dataclass

from slackwater.forecasting.predictors.last_value import last_value
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.warehouse.sources.files.tabular import Tabular


@dataclass(frozen=True)
class Patient(OnDemandOnly):
    name: str = "Patient"


def same():
    return last_value()


class Table(Tabular):
    name = "mine:Table"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_tidy(tmp_path / "data")
    small_settings(tmp_path, measured_origins=0)
    (tmp_path / "late.toml").write_text(JOB)
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("mine", None)


def test_a_policy_of_another_module_plans_and_replays(folder):
    where = ("--data", "data", "--settings", "slackwater.toml", "--json")
    at = LAST.floor("30min").isoformat()
    plan = call("plan", "late.toml", "--policy", "mine:Patient", "--at", at, *where).value
    assert plan["policy"] == "Patient"
    assert plan["spot"] == 0
    start = (LAST.floor("30min") - pd.Timedelta(days=1)).isoformat()
    replay = call("replay", "--job", "late.toml", "--policy", "mine:Patient", "--from", start, *where).value
    assert replay["policy"] == "Patient"


def test_a_pool_takes_a_policy_of_another_module(folder):
    (folder / "own.toml").write_text('[[family]]\nname = "mine:Patient"\n[[family]]\nname = "UP"\n')
    assert [policy.name for policy in load_pool(folder / "own.toml")] == ["Patient", "UP"]


def test_a_predictor_and_a_source_of_another_module(folder):
    assert make_predictor("mine:same").name
    db = ("--db", "w.duckdb", "--settings", "slackwater.toml")
    read = call("ingest", "mine:Table", "data", *db, "--json").value
    assert read["mine:Table"]["added"] > 0
    at = LAST.floor("30min").isoformat()
    issued = call("forecast", "--market", MARKET, "--model", "mine:same", "--at", at, *db, "--json")
    assert issued.code == 0, issued.err


@pytest.mark.parametrize("name", ["nothing:here", "mine:Nothing"])
def test_a_name_that_cannot_be_imported_is_an_error(folder, name):
    with pytest.raises(SettingsError, match="cannot be imported"):
        policy_named(name)
    assert call("forecast", "--market", MARKET, "--model", name, "--data", "data").code == 2
