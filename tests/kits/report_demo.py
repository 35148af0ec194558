"""Random but plausible report data; ``python tests/kits/report_demo.py page.html`` writes a page to look at."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd

from slackwater.flows.turn.report.leaderboard import PolicyResults
from slackwater.flows.turn.report.page import ReportData
from slackwater.flows.turn.report.panels import MarketPanel
from slackwater.forecasting.accuracy.tables import with_common
from slackwater.forecasting.quantiles import LEVELS, Forecast
from slackwater.warehouse.history import Market

NOW = pd.Timestamp("2026-05-04T12:00Z")
STEP = pd.Timedelta(minutes=30)
MODELS = ("last_value", "seasonal_naive", "arima", "lightgbm", "markov")
TYPES = (
    ("aws", "p3.2xlarge", 3.06, 4),
    ("gcp", "a3-highgpu-1g", 11.06, 16),
    ("vast", "A100_SXM_80GB_x1", 1.9, 14),
)


def demo_forecast(
    rng: np.random.Generator, market: Market, *, price: float, count: float, on_demand: float, capacity: int,
    horizon: int, at: pd.Timestamp = NOW,
) -> Forecast:  # fmt: skip
    """Return bands around the last values that widen with the step, inside their bounds."""
    wide = np.sqrt(np.arange(1, horizon + 1))[:, None]
    z = np.array([-1.645, -1.28, -1.04, -0.84, -0.67, -0.52, -0.39, -0.25, -0.13, 0.0])
    z = np.append(z, -z[-2::-1])
    prices = np.clip(price * (1 + 0.03 * wide * z), 0.0, on_demand)
    drift = count + (0.5 * capacity - count) * (1 - np.exp(-wide / 6))
    counts = np.clip(np.round(drift + 0.09 * capacity * wide * z), 0, capacity)
    return Forecast(
        market=market, issued_at=at, step=STEP, predictor="markov", newest_row=at,
        price=prices, price_mean=prices.mean(axis=1), count=counts, count_mean=counts.mean(axis=1),
        capacity=capacity, price_fallback="" if rng.random() < 0.8 else "flat for 7 days",
    )  # fmt: skip


def demo_panel(
    rng: np.random.Generator, i: int, *, slots: int = 96, horizon: int = 12, at: pd.Timestamp = NOW
) -> MarketPanel:
    """Return a sticky price and a count that moves between stays at its bounds, with a gap in every third market."""
    provider, kind, on_demand, capacity = TYPES[i % len(TYPES)]
    market = Market(
        provider=provider, region="us-west-2", zone=f"us-west-2{'abcdefgh'[i % 8]}", instance_type=kind
    )
    moves = np.where(rng.random(slots) < 0.08, rng.normal(0, 0.08, slots), 0.0)
    price = np.clip(
        on_demand * (0.38 + 0.2 * rng.random()) * np.exp(np.cumsum(moves)), 0.3 * on_demand, on_demand
    )
    count = np.clip(
        np.round(capacity * (0.5 + 0.6 * np.sin(np.cumsum(rng.normal(0, 0.25, slots))))), 0, capacity
    )
    last = (float(price[-1]), float(count[-1]))
    if i % 3 == 2:
        a = int(rng.integers(5, max(6, slots - 30)))
        price[a : a + 14] = np.nan
        count[a + 4 : a + 18] = np.nan
    forecast = demo_forecast(
        rng, market, price=last[0], count=last[1], on_demand=on_demand, capacity=capacity, horizon=horizon, at=at
    )  # fmt: skip
    return MarketPanel(
        title=market.key, source="skynomad" if provider != "vast" else "vastai",
        slots=pd.date_range(end=at, periods=slots, freq=STEP), price=price, available=count,
        on_demand_usd=on_demand, capacity=capacity, forecast=forecast if i != 7 else None,
        assumptions=("the price is assumed to be 30 % of on-demand: this source counts instances only",)
        if provider == "gcp" else (),
    )  # fmt: skip


def demo_accuracy(rng: np.random.Generator, markets: list[str], *, horizon: int = 12) -> pd.DataFrame:
    """Return errors of eight days that grow with the step; some models lose at first and win later."""
    days = [_errors_of_a_day(rng, markets, horizon).assign(day=day, scale=1.0) for day in range(8)]
    return pd.concat([with_common(day) for day in days], ignore_index=True)


def _errors_of_a_day(rng: np.random.Generator, markets: list[str], horizon: int) -> pd.DataFrame:
    edge = {"last_value": 0.0, "seasonal_naive": -0.5, "arima": 0.02, "lightgbm": 0.1, "markov": 0.06}
    rows = []
    for market in markets:
        for variable, scale in (("price", 0.04), ("count", 0.9)):
            level = scale * (0.5 + rng.random())
            for step in range(1, horizon + 1):
                base = level * np.sqrt(step)
                for model in MODELS:
                    gain = edge[model] * (1 + 0.06 * step) + (
                        0.15 * (step - 3) / horizon if edge[model] > 0 else 0
                    )
                    gain = 0.0 if model == "last_value" else gain + 0.01 * rng.normal()
                    mae = base * (1 - gain)
                    rows.append({
                        "market": market, "variable": variable, "model": model, "step": step, "n": 48 - step,
                        "mae": mae, "rmse": 1.4 * mae, "mase": mae / level, "pinball": 0.4 * mae * (1 - 0.3 * gain),
                        "skill_mae": gain, "skill_pinball": gain, "coverage_80": 0.75 + 0.1 * rng.random(),
                        "brier": 0.1 if variable == "count" else np.nan, "fallback_share": 0.02,
                    })  # fmt: skip
    return pd.DataFrame(rows)


def demo_policies() -> list[str]:
    """Return the 112 policies of M4.8, the baselines and the stochastic policy."""
    sigmas = [f"{0.1 * s:.1f}" for s in range(3, 10)]
    ahap = [f"AHAP({w},{v},{s})" for w in range(1, 6) for v in range(1, w + 1) for s in sigmas]
    return ["OD-only", "MSU", "UP", "Stochastic", *[f"AHANP({s})" for s in sigmas], *ahap]


def demo_selection(rng: np.random.Generator, *, rounds: int = 24) -> PolicyResults:
    """Return a leaderboard and the weights of exponentiated gradient on its utilities, with a change half-way."""
    names = demo_policies()
    skill = 0.93 + 0.05 * rng.random(len(names))
    skill[:4] = (0.5, 0.97, 0.96, 1.0)
    utility = skill + 0.05 * rng.normal(size=(rounds, len(names)))
    utility[: rounds // 2, 40] += 0.1
    utility[rounds // 2 :, 77] += 0.14
    bound = float(utility.max(axis=1).mean()) + 0.01
    log = np.cumsum(3 * utility, axis=0)
    weights = np.exp(log - log.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    board = [
        {"policy": name, "jobs": rounds, "mean_utility": float(utility[:, j].mean()),
         "mean_cost_usd": float(60 * (1.5 - utility[:, j].mean())), "on_time": float(1 - 0.04 * (j % 3 == 1)),
         "mean_saved_usd": None, "mean_hindsight_usd": None, "reported_jobs": 0,
         "gap_to_hindsight": bound - float(utility[:, j].mean()), "weight": float(weights[-1, j])}
        for j, name in enumerate(names)
    ]  # fmt: skip
    board.sort(key=lambda row: -row["mean_utility"])
    return PolicyResults(
        leaderboard=board,
        movers=[],
        findings=["A finding on the best policy."],
        policies=tuple(names),
        round_jobs=tuple(f"practice-{k + 1:02d}-bert-sweep" for k in range(rounds)),
        weights=tuple(map(tuple, weights.tolist())),
    )


def demo_decision(i: int, panel: MarketPanel) -> dict[str, object]:
    """Return one row of the decision table."""
    return {
        "job": f"llama-8b-lora-0504-1200-{i + 1}", "market": panel.title, "source": panel.source,
        "slot": NOW.isoformat(), "on_demand": i % 3, "spot": 2 * i + 1, "policy": ("AHAP(5,1,0.9)", "UP")[i % 2],
        "reason": "behind the even pace by 0.6 slots; spot costs 0.41 of on-demand; probability of 4 spot in the next slot: 83 %",
        "expected_cost_usd": 41.2345 + 30 * i, "expected_finish": (NOW + pd.Timedelta(hours=7 + i)).isoformat(),
        "late_probability": (0.004, 0.27, 0.0, 0.61)[i % 4], "deadline": (NOW + pd.Timedelta(hours=9)).isoformat(),
        "synthetic": list(panel.assumptions), "must_finish": True,
    }  # fmt: skip


def demo_data(*, markets: int = 24, seed: int = 7, simulated: bool = True, rounds: int = 24) -> ReportData:
    """Return the data of a whole turn."""
    rng = np.random.default_rng(seed)
    panels = [demo_panel(rng, i, at=NOW if i % 5 else NOW - pd.Timedelta(days=1150)) for i in range(markets)]
    selection = demo_selection(rng, rounds=rounds)
    return ReportData(
        at=NOW, run_id="run-20260504T120000Z", simulated=simulated, planner="markov", learned=selection,
        decisions=[demo_decision(i, panels[j]) for i, j in enumerate(range(1, markets, max(1, markets // 4)))][:4],
        accuracy=demo_accuracy(rng, [panel.title for panel in panels]),
        ingested={
            "simulated": {"added": 24_192, "repeated": 0, "rejected": 0},
            "skynomad": {"added": 8_410, "repeated": 112, "rejected": 3},
        },
        panels=panels,
        notes=[
            "lightgbm fell back on 3 of 24 markets: fewer than 64 observed slots.",
            "The leader is within 0.01 of UP: the pool has hardly earned its keep yet.",
        ],
    )  # fmt: skip


if __name__ == "__main__":
    from slackwater.flows.turn.report.page import write_report

    made = demo_data()
    began = time.perf_counter()
    page = write_report(made, Path(sys.argv[1]))
    print(
        f"{page}: {page.stat().st_size / 1e6:.2f} MB in {time.perf_counter() - began:.1f} s ({LEVELS.size} levels)"
    )
