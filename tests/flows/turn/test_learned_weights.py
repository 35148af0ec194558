"""Weights as the warehouse keeps them: rebuilt from the stored utilities to the last bit, whoever learns (M5.3)."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flows.config import Settings, read_settings
from flows.ledger.records import save_scored, stored_rounds
from flows.turn.score import EndedJob, Scored, score_job
from optimization import Job
from optimization.job.request import parse_request
from optimization.job.throughput import Linear
from optimization.market.window import market_window
from optimization.policies.pool import policy_named
from optimization.selection.contract import weigh
from optimization.selection.learners import DEFAULT_LEARNER, LEARNERS, learner_named
from warehouse.errors import SettingsError
from warehouse.issued.records import read_rows
from warehouse.store.connection import open_store

AT = pd.Timestamp("2026-01-05T10:00:00Z")
NAMES = ["OD-only", "MSU", "UP", "AHANP(0.7)"]
REQUEST = parse_request(
    {
        "name": "demo",
        "deadline_in": "4h",
        "n_max": 4,
        "value_usd": 30.0,
        "workload": {"amount": 10.0, "unit": "gpu_hours"},
        "throughput": {"form": "linear"},
        "checkpoint": {"resumable": True},
    },
    "test",
)


@pytest.fixture(scope="module")
def scored() -> list[Scored]:
    rng = np.random.default_rng(3)
    policies = [policy_named(name) for name in NAMES]
    done = []
    for k in range(6):
        job = Job(
            name=f"j{k}",
            workload=rng.uniform(8, 20),
            deadline_slots=8,
            n_min=1,
            n_max=4,
            throughput=Linear(),
            value=30,
        )
        window = market_window(
            rng.uniform(0.2, 0.9, 8), rng.integers(0, 5, 8), on_demand_usd=1.0, slot_hours=1.0
        )
        ended = EndedJob(
            request=REQUEST, job=job, start=AT, window=window, forecasts=[None] * 8, assumptions=()
        )
        done.append(score_job(ended, policies))
    return done


@pytest.mark.parametrize("name", LEARNERS)
def test_stored_weights_are_rebuilt_to_the_last_bit(name, scored, tmp_path):
    learner, db = learner_named(name), tmp_path / "w.duckdb"
    for k, part in enumerate((scored[:2], scored[2:5], scored[5:])):
        with open_store(db) as store:  # closed and opened again between the turns
            save_scored(store, [(AT + k * pd.Timedelta("1h"), part)], names=NAMES, learner=learner)
    with open_store(db) as store:
        rounds = stored_rounds(store, NAMES)
        rows = read_rows(store, "weights", order_by=["round"])
    assert rounds.jobs == tuple(f"j{k}" for k in range(6))
    utilities = np.array([[row.normalised for row in one.ledger] for one in scored])
    assert rounds.utilities.tobytes() == utilities.tobytes()
    rebuilt = rounds.weights(learner)
    assert [w.log_weight.tobytes() for w in rebuilt] == [
        w.log_weight.tobytes() for w in weigh(learner, NAMES, utilities)
    ]
    stored = rows.pivot(index="round", columns="policy", values="log_weight")[NAMES].to_numpy()
    assert stored.tobytes() == np.array([w.log_weight for w in rebuilt[1:]]).tobytes()
    assert len(np.unique(stored[-1])) == len(NAMES), "the jobs told the policies apart"


def test_another_learner_goes_on_from_the_same_utilities(scored, tmp_path):
    """What is kept are the rounds; a learner that takes over later weighs as if it had been there from the start."""
    with open_store(tmp_path / "w.duckdb") as store:
        save_scored(store, [(AT, scored[:4])], names=NAMES, learner=learner_named("anytime"))
        save_scored(store, [(AT, scored[4:])], names=NAMES, learner=learner_named("squint"))
        rounds = stored_rounds(store, NAMES)
        rows = read_rows(store, "weights", order_by=["round"])
    last = rows[rows["round"] == 6].set_index("policy")["log_weight"][NAMES].to_numpy()
    assert last.tobytes() == rounds.weights(learner_named("squint"))[-1].log_weight.tobytes()


def test_the_learner_of_the_settings(tmp_path):
    assert Settings().learner == DEFAULT_LEARNER
    file = tmp_path / "s.toml"
    file.write_text('learner = "squint"\n')
    assert read_settings(file).learner == "squint"
    file.write_text('learner = "oracle"\n')
    with pytest.raises(SettingsError, match=r"learner.*oracle.*adahedge"):
        read_settings(file)
