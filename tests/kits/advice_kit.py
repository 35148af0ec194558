"""A small warehouse, a job on its market, and decisions for it of every kind, without an engine or a complete turn."""

import shutil
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
from make import make_request, make_turn, save_run
from tidy_folder import START, write_tidy

from slackwater.flows.config import Settings
from slackwater.flows.delivery import deliver
from slackwater.flows.histories import read_history
from slackwater.flows.ledger.decisions import decisions_of, placements_of, revisions_by_job, save_decisions
from slackwater.flows.ledger.fields import decision_row
from slackwater.flows.ledger.jobs import find_job, save_jobs
from slackwater.flows.ledger.open_job import open_job
from slackwater.flows.places import find_market
from slackwater.flows.turn.decide import effort_of
from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.decision import decide, record_start
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta("30min")
BEGIN = START.ceil("30min") + pd.Timedelta(days=6)
MARKET, SOURCE = "lab/r1/z1/a3-highgpu-1g", "lab:counts"
SETTINGS = Settings(history_days=3, risk_paths=10, seed=5)
AHAP = "AHAP(3,1,0.9)"


def request(name="demo", *, at=BEGIN, market=MARKET, source=SOURCE, **changes):
    """Return the usual request, worth $120, at the beginning."""
    return make_request(name, at=at, market=market, source=source, **{"value_usd": 120.0, **changes})


@cache
def _observed() -> TemporaryDirectory:
    """Return a tidy folder and a warehouse with its observations, created once per process and only copied."""
    made = TemporaryDirectory()
    folder = Path(made.name)
    tidy = write_tidy(folder / "data")
    with open_store(folder / "w.duckdb") as store:
        ingest(store, "tabular", tidy, imported_at=BEGIN, progress=lambda _: None)
    return made


def new_store(folder):
    """Return an open, separate warehouse with the tidy folder's observations."""
    made = Path(_observed().name)
    shutil.copytree(made / "data", folder / "data")
    shutil.copyfile(made / "w.duckdb", folder / "w.duckdb")
    return open_store(folder / "w.duckdb")


def add_job(store, **changes):
    placed = request(**changes)
    save_jobs(store, [placed], origin="user", at=BEGIN, step=STEP)
    return find_job(store, placed.name)


@cache
def _added() -> TemporaryDirectory:
    """Return a warehouse with the job and no market, created once per process and only copied."""
    made = TemporaryDirectory()
    with open_store(Path(made.name) / "w.duckdb") as store:
        add_job(store)
    return made


def job_store(folder):
    """Return an open, separate warehouse with one job of twelve slots and no market."""
    return open_store(shutil.copy(Path(_added().name) / "w.duckdb", folder / "w.duckdb"))


def opened(store, slot, *, asked=None, decided=None, reports=()):
    """Return a job at a slot, with the given decisions or those of the warehouse."""
    asked = asked or request()
    text = f"{asked.market}@{asked.source}"
    followed = find_market(store, text, at=BEGIN + slot * STEP, settings=SETTINGS)
    history = read_history(store, followed, settings=SETTINGS, start=record_start(BEGIN))
    if decided is None:
        decided = placements_of(decisions_of(store, asked.name))
    revisions = revisions_by_job(store, [asked.name])[asked.name]
    return open_job(asked, [history], decided=decided, reports=reports, revisions=revisions)


def row_of(running, policy):
    """Return a policy's decision for a job as plain values."""
    return decision_row(running, decide(running.live, policy_named(policy), effort_of(SETTINGS)))


def handed(turn, rows, **how):
    """Deliver decisions as a live turn does."""
    return deliver(turn.store, turn.settings.sinks, rows, at=turn.at, say=turn.say, **how)


def decided_row(store, slot, *, policy="UP", **more):
    return row_of(opened(store, slot, **more), policy) | {"chosen_because": "asked for"}


def hold(allocation, slots):
    return {BEGIN + slot * STEP: (MARKET, Allocation(*allocation)) for slot in range(slots)}


def turn_at(store, slot=0, *, sinks=(), made="live", said=None):
    at = BEGIN + slot * STEP
    settings = SETTINGS.model_copy(update={"sinks": tuple(sinks)})
    say = (lambda _: None) if said is None else said.append
    return make_turn(store, at, settings, made=made, say=say)


def keep(store, turn, rows):
    """Store decisions as the allocate stage does."""
    with store.transaction():
        save_decisions(store, [(turn.run_id, row) for row in rows])
        save_run(store, turn.run_id, at=turn.at, stage="allocate", details={}, made=turn.made)
