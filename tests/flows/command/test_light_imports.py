"""Modules that a command loads: no more than its answer needs, and nothing of the optimizer where nothing is computed."""

import json
import subprocess
import sys

import pandas as pd
import pytest
from command_kit import call
from make import checkpoint, job_text, make_turn

from slackwater.flows.config import Settings
from slackwater.flows.ledger.decisions import save_decisions
from slackwater.flows.plans.one_job import PlanQuery, plan_job
from slackwater.flows.query import named_job
from slackwater.warehouse.store.connection import open_store

AT = "2026-03-10T12:00Z"
WAREHOUSE = """
warehouse warehouse.amounts warehouse.catalogue warehouse.columns warehouse.documents warehouse.errors warehouse.inputs
warehouse.plugins warehouse.store warehouse.store.connection warehouse.store.files warehouse.store.schema
warehouse.times
"""
#: The command line with its settings.
COMMANDS = """
flows flows.cli flows.clock flows.command flows.config flows.show flows.show.blocks flows.show.formats
flows.show.terminal
"""
INGEST = f"""
{WAREHOUSE} {COMMANDS}
flows.ingest warehouse.observations warehouse.sources warehouse.sources.column_facts warehouse.sources.contract
warehouse.sources.files warehouse.sources.files.reading warehouse.sources.files.tabular
"""
#: Requests of jobs, the markets in which they may run, and the histories of these.
JOBS = f"""
{WAREHOUSE} {COMMANDS}
flows.following flows.histories flows.ledger flows.ledger.jobs flows.places flows.query
optimization optimization.job optimization.job.definition optimization.job.markets
optimization.job.request optimization.job.times optimization.job.units optimization.kernels optimization.kernels.rules
warehouse.asof warehouse.history warehouse.issued warehouse.listing
"""
ADD = f"""
{JOBS}
flows.jobs flows.jobs.command
"""
#: A plan that a turn has issued is read in a turn, with the reports of its job.
PLAN = f"""
{JOBS}
flows.ledger.decisions flows.ledger.endings flows.ledger.fields flows.ledger.headline flows.ledger.reports
flows.ledger.stages flows.plans flows.plans.command flows.plans.one_job flows.turn flows.turn.context optimization.fan
"""
#: Arguments -> the modules that may be loaded.
LIGHT = {
    ("ingest", "tabular", "two.csv"): INGEST,
    ("job", "add", "job.toml", "--market", "lab/r/z/x", "--at", AT): ADD,
    ("plan", "lora", "--at", AT): PLAN,
}
LOADED = """
import json, os, sys
os.chdir(sys.argv[2])
from slackwater.flows.cli import PROGRAM
code = PROGRAM.run(json.loads(sys.argv[1]))
print()
print(json.dumps([code, sorted(sys.modules)]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a job file, a table of prices and counts, and a warehouse with both and an issued decision."""
    folder = tmp_path_factory.mktemp("light")
    times = pd.date_range("2026-03-06T12:00Z", AT, freq="30min")
    rows = [f"lab,r,z,x,{at.isoformat()},1.0,4.0,{k % 5},16" for k, at in enumerate(times)]
    header = "provider,region,zone,instance_type,timestamp,price_usd,on_demand_usd,available,capacity"
    (folder / "two.csv").write_text("\n".join([header, *rows]) + "\n")
    (folder / "job.toml").write_text(
        job_text(
            "lora",
            deadline_in=None,
            start=pd.Timestamp(AT),
            deadline=pd.Timestamp("2026-03-11T00:00Z"),
            n_max=4,
            checkpoint=checkpoint(6),
        )
    )
    db = folder / "slackwater.duckdb"
    assert call("ingest", "tabular", folder / "two.csv", "--db", db).code == 0
    assert call("job", "add", folder / "job.toml", "--market", "lab/r/z/x", "--db", db, "--at", AT).code == 0
    with open_store(db) as store:
        turn = make_turn(store, pd.Timestamp(AT), Settings())
        planned = plan_job(turn, named_job(turn, "lora"), PlanQuery())
        save_decisions(store, [("r", planned.row)])
    return folder


@pytest.mark.parametrize(("words", "allowed"), LIGHT.items(), ids=[" ".join(words[:2]) for words in LIGHT])
def test_a_command_loads_no_more_than_its_modules(folder, words, allowed):
    program = [sys.executable, "-c", LOADED, json.dumps(words), str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    code, loaded = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    own = {name.partition(".")[2] for name in loaded if name.startswith("slackwater.")}
    assert own == set(allowed.split())
    assert not {
        "numba",
        "scipy",
        "lightgbm",
        "statsmodels",
        "pyomo",
        "prefect",
        "altair",
        "httpx",
        "asyncio",
    } & set(loaded)
