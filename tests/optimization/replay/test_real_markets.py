"""The pool on measured counts: H100 probes of 14 days, at a flat catalogue price (open data)."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from make import make_job, make_record, make_window
from open_data import DATA

from slackwater.optimization.market.window import MarketWindow
from slackwater.optimization.policies.pool import load_pool
from slackwater.optimization.replay.run import replay
from slackwater.optimization.replay.score import hindsight, leaderboard, ledger_row, perfect_forecasts
from slackwater.optimization.selection.contract import utility_bounds
from slackwater.studies.audit import audit_outcome
from slackwater.studies.replays import replay_pool
from slackwater.studies.trials.scenarios import on_demand_only_cost

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"no open data at {DATA}; set SLACKWATER_DATA")
POOL = [
    p
    for p in load_pool()
    if not p.name.startswith("AHAP") or (p.commitment in (1, p.omega) and p.sigma == 0.9)
]


def counts(zone: str) -> np.ndarray:
    """Return half-hourly counts by sample and hold; a slot whose last probe is older than an hour is a gap (M1.3)."""
    rows = pd.read_parquet(
        DATA / "availability.parquet",
        filters=[("zone", "==", zone), ("instance_type", "==", "a3-highgpu-1g")],
        columns=["timestamp", "available"],
    ).sort_values("timestamp")
    grid = pd.DataFrame(
        {
            "slot": pd.date_range(
                rows["timestamp"].iloc[0].ceil("30min"), rows["timestamp"].iloc[-1], freq="30min"
            )
        }
    )
    held = pd.merge_asof(grid, rows, left_on="slot", right_on="timestamp", tolerance=pd.Timedelta(hours=1))
    return held["available"].to_numpy(dtype=float)


def windows(zone: str, slots: int, every: int) -> list[MarketWindow]:
    count = counts(zone)
    return [
        make_window(np.full(slots, 0.4), count[k : k + slots], slot_hours=0.5)
        for k in range(0, len(count) - slots, every)
    ]


@pytest.mark.parametrize(
    ("zone", "load"),
    [
        ("us-west1-b", 0.7),
        pytest.param("us-west1-a", 0.5, marks=pytest.mark.slow),
        pytest.param("us-east4-a", 0.3, marks=pytest.mark.slow),
    ],
)
def test_the_pool_on_measured_counts(zone, load):
    job = make_job(
        name="h100",
        workload=load * 24 * 8 * 0.5,
        deadline_slots=24,
        mu_up=0.9,
        mu_down=0.95,
        value=1.5 * load * 24 * 8 * 0.5,
    )
    rows = []
    for i, window in enumerate(windows(zone, 24, 96)):
        outcomes = replay_pool(POOL, job, window, forecasts=perfect_forecasts(window, 5))
        best = hindsight(job, window)
        for outcome in outcomes:
            assert outcome.on_time
            audit_outcome(job, window, outcome)
            assert outcome.utility_usd <= best.high + 1e-6
        unit = on_demand_only_cost(job, window)
        named = replace(job, name=f"h100-{i}")
        bounds = utility_bounds(named, on_demand_usd=window.on_demand_usd, slot_hours=window.slot_hours)
        rows += [
            asdict(ledger_row(outcome, unit=unit, bounds=bounds, hindsight_low=best.low))
            for outcome in outcomes
        ]
    board = leaderboard(pd.DataFrame(rows).assign(hindsight_usd=np.nan)).set_index("policy")
    assert (board["jobs"] >= 7).all()
    assert (board["gap_to_hindsight"] >= -1e-9).all()
    assert (board["mean_utility"].drop("OD-only") > board.loc["OD-only", "mean_utility"]).all()


@pytest.mark.slow  # the quick forms: the families that share plans or tables, in their own tests
def test_the_whole_pool_equals_one_by_one_on_measured_counts():
    """Outcomes are equal, not merely close: sharing plans, windows and paces changes nothing (M5.1)."""
    pool, count = load_pool(), counts("us-west1-b")
    for mu_up, first in ((0.6, 300), (-0.4, 500)):
        there = count[: first + 24]
        window = make_window(np.full(24, 0.4), there[first:], slot_hours=0.5)
        job = make_job(
            name="one", workload=0.6 * 24 * 8 * 0.5, deadline_slots=24, mu_up=mu_up, mu_down=0.95, value=60.0
        )
        seen = {
            "forecasts": perfect_forecasts(window, 3),
            "record": make_record(np.full(len(there), 0.4), there, first=first, slot_hours=0.5, hour=0.0),
        }
        together = replay_pool(pool, job, window, **seen)
        assert together == [replay(policy, job, window, **seen) for policy in pool]
