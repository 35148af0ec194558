"""Policies, predictors, sources and commands of an installed package go through every door: turn, backfill, accuracy, replay."""

import sys

import pandas as pd
import pytest
from command_kit import call
from make import job_text
from plugin_package import install
from test_stale import LAST, MARKET, TERMS
from test_turn import small_settings
from tidy_folder import write_tidy

from slackwater.flows.backfill.run import run_backfill, slots_between
from slackwater.flows.config import read_settings
from slackwater.flows.engine.turns import complete_turn
from slackwater.forecasting.predictors import make_predictor
from slackwater.optimization.job.request import read_request
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_store

NOW = LAST.floor("30min")
STEP = pd.Timedelta(hours=1)
OWN = '[[family]]\nname = "Patient"\npatience = [0.25, 0.5]\n[[family]]\nname = "UP"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the package on the path, settings that name its policy and predictors, and data read by its source."""
    path = tmp_path_factory.mktemp("plugins")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(install(path / "site"))
        patch.setenv("PYTHONPATH", str(path / "site"))
        patch.chdir(path)
        write_tidy(path / "data")
        file = small_settings(path, measured_origins=0)
        (path / "pool.toml").write_text(OWN)
        text = file.read_text()
        models = 'models = ["last_value", "markov"]\nplanner = "markov"'
        assert models in text
        file.write_text(
            text.replace(
                models,
                'models = ["last_value", "patient_jobs:held", "ridge"]\nplanner = "ridge"\nfirst_policy = "Patient(0.25)"',
            )
        )
        (path / "late.toml").write_text(job_text("late", market=MARKET, **TERMS))
        yield path
    sys.modules.pop("patient_jobs", None)


DB = ("--db", "w.duckdb", "--settings", "slackwater.toml", "--json")


@pytest.fixture(scope="module")
def served(folder):
    """Return the answers of a turn and of a backfill of the slot before it, on data read by the source of the package.

    Both run as plain calls, as without Prefect.
    """
    read = call("ingest", "ledger", "data", *DB).value
    assert read["ledger"]["added"] > 0
    db, settings = folder / "w.duckdb", read_settings(folder / "slackwater.toml")
    requests = [read_request(folder / "late.toml")]
    turn = complete_turn(
        db, NOW, settings=settings, data=None, requests=requests, report=folder / "turn.html"
    )
    slots = slots_between(NOW - STEP, NOW - STEP, slot=pd.Timedelta(minutes=settings.step_minutes))
    return turn.answer(), run_backfill(db, slots, settings, data=None)


def test_names_of_a_package_are_names_of_ours(folder):
    assert policy_named("Patient").name == "Patient(0.5)"
    assert policy_named("Patient(0.25)").patience == 0.25
    assert [policy.name for policy in load_pool(folder / "pool.toml")] == [
        "Patient(0.25)",
        "Patient(0.5)",
        "UP",
    ]
    assert make_predictor("held").name == "held"


def test_a_turn_decides_with_the_policy_and_the_predictor(served):
    turn, _ = served
    (row,) = turn["decisions"]
    assert row["policy"] == "Patient(0.25)"
    assert row["spot"] == 0


def test_a_turn_and_a_backfill_store_forecasts_and_estimates(folder, served):
    _, filled = served
    assert not any(outcome.reasons for outcome in filled), filled
    with open_store(folder / "w.duckdb") as store:
        issued, fitted = read_rows(store, "vintages"), read_rows(store, "fitted")
    times = {(name, pd.Timestamp(at)) for name, at in zip(issued["model"], issued["issued_at"], strict=True)}
    names = {"patient_jobs:held", "ridge"}
    assert {(name, at) for name in names for at in (NOW, NOW - STEP)} <= times
    assert names <= {name.rpartition(":")[0] for name in fitted["predictor"]}


def test_a_replay_takes_the_policy_with_its_parameter(folder):
    start = (NOW - pd.Timedelta(days=1)).isoformat()
    given = ("--data", "data", "--settings", "slackwater.toml", "--json")
    replay = call("replay", "--job", "late.toml", "--policy", "Patient(0.75)", "--from", start, *given).value
    assert replay["policy"] == "Patient(0.75)"
    plan = call(
        "plan", "late.toml", "--policy", "patient_jobs:Patient(0.75)", "--at", NOW.isoformat(), *given
    ).value
    assert plan["policy"] == "Patient(0.75)"


def test_a_name_may_be_a_place(folder):
    read = call("ingest", "patient_jobs:Table", "data", "--db", "other.duckdb", *DB[2:]).value
    assert read["patient_jobs:Table"]["added"] > 0
    at = ("--at", NOW.isoformat())
    issued = call(
        "forecast", "--market", MARKET, "--model", "patient_jobs:ridge", *at, "--db", "other.duckdb", *DB[2:]
    )
    assert issued.code == 0, issued.err


@pytest.mark.parametrize("name", ["nothing:here", "patient_jobs:Nothing"])
def test_a_place_that_cannot_be_imported_is_an_error(folder, name):
    with pytest.raises(SettingsError, match="cannot be imported"):
        policy_named(name)
    assert call("forecast", "--market", MARKET, "--model", name, "--data", "data").code == 2


def test_accuracy_measures_the_predictors(folder):
    given = ("--data", "data", "--settings", "slackwater.toml", "--json", "--workers", "1", "--step", "1h")
    told = call("accuracy", "--model", "held", "--model", "ridge", "--market", MARKET, *given).value
    assert {row["model"] for row in told["pooled"]} == {"last_value", "held", "ridge"}
