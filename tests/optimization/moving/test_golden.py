"""Walks and exact optima over several markets, compared with values computed outside this project."""

import json

import numpy as np
import pytest
from make import make_job, make_window
from moving_audit import audit_moved
from moving_walk import walk
from open_data import DATA

from slackwater.optimization.job.definition import Allocation, Linear
from slackwater.optimization.job.markets import even_moving
from slackwater.optimization.moving.definition import IDLE, MarketsJob, Placement
from slackwater.optimization.moving.hindsight import hindsight_over_markets

CASES = DATA.parent / "golden" / "markets.json"
pytestmark = pytest.mark.skipif(not CASES.is_file(), reason="no golden cases of many markets here")


def cases():
    return json.loads(CASES.read_text()) if CASES.is_file() else []


def made(case):
    job, moving = case["job"], case["moving"]
    windows = [
        make_window(
            np.array(m["price"], float), np.array(m["available"], float), on_demand_usd=m["on_demand"]
        )
        for m in case["markets"]
    ]
    run = make_job(
        name="golden",
        workload=job["L"],
        deadline_slots=job["d"],
        n_min=job["n_min"],
        n_max=job["n_max"],
        throughput=Linear(alpha=job["alpha"], beta=job["beta"]),
        mu_up=job["mu_up"],
        mu_down=job["mu_down"],
        value=job["v"],
        gamma=job["gamma"],
    )
    costs = even_moving(len(windows), taken=moving["extra"], usd=moving["usd"])
    return MarketsJob(runs=(run,) * len(windows), moving=costs, home=job["home"]), windows


@pytest.mark.parametrize("case", cases())
def test_walk(case):
    job, windows = made(case)
    held = [IDLE if m is None else Placement(m, Allocation(o, s)) for m, o, s in case["decisions"]]
    outcome = walk(job, windows, held)
    audit_moved(job, windows, outcome)
    expect = case["expect"]
    assert outcome.cost_usd == pytest.approx(expect["cost"], abs=1e-6)
    assert outcome.progress == pytest.approx(min(expect["progress"], job.job.workload), abs=1e-6)
    assert outcome.finished_slot == expect["finished_slot"]
    assert outcome.utility_usd == pytest.approx(expect["utility"], abs=1e-6)


@pytest.mark.parametrize("case", cases())
def test_hindsight(case):
    job, windows = made(case)
    best = hindsight_over_markets(job, windows)
    assert best.utility_usd == pytest.approx(case["best_utility"], abs=1e-6)
    outcome = walk(job, windows, best.held)
    assert outcome.total_cost_usd == pytest.approx(best.cost_usd, abs=1e-6)
    audit_moved(job, windows, outcome)
    assert outcome.utility_usd == pytest.approx(case["best_utility"], abs=1e-6)
