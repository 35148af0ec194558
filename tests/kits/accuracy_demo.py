"""Random but plausible tables of a backtest; ``python tests/kits/accuracy_demo.py page.html`` writes a page to look at."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

from slackwater.flows.accuracy.blocks import Background, report_blocks
from slackwater.flows.show.blocks import Page
from slackwater.flows.show.page import render_page
from slackwater.forecasting.accuracy.intervals import verdict
from slackwater.forecasting.accuracy.tables import (
    DAILY_COLUMNS,
    RELIABILITY_COLUMNS,
    SCORE_COLUMNS,
    Accuracy,
    class_scores,
    pooled_scores,
)
from slackwater.forecasting.diagnosis.predictability import PREDICTABILITY

START = pd.Timestamp("2025-10-10T00:00Z")
STEP = pd.Timedelta(minutes=30)
LEVELS = np.round(np.arange(0.05, 0.951, 0.05), 2)
MODELS = ("last_value", "seasonal_naive", "arima", "lightgbm", "markov", "combined_raw", "combined")
#: Each model's saving relative to last value's loss at step 1, and the share of it left at the last step.
SKILL = {
    "last_value": 0.0,
    "seasonal_naive": -0.4,
    "arima": 0.12,
    "lightgbm": 0.24,
    "markov": -0.1,
    "combined_raw": 0.3,
    "combined": 0.33,
}


def same_tables(one: Accuracy, other: Accuracy) -> None:
    """Assert that the tables of two reports are equal to the bit."""
    for name in ("scores", "pooled", "spans", "reliability", "daily", "reasons"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_exact=True)


def demo_market(variable: str, i: int) -> str:
    zone = f"us-east4-{'abcdefgh'[i % 8]}" if variable == "count" else f"us-east-1{'abcdefgh'[i % 8]}"
    kind = "gcp/us-east4" if variable == "count" else "aws/us-east-1"
    return f"{kind}/{zone}/type-{i}@{'skynomad-h100' if variable == 'count' else 'amazon-spot-2021'}"


def demo_scores(rng: np.random.Generator, *, markets: int, steps: int, shift: float = 0.0) -> pd.DataFrame:
    """Return scores of every model on every market; the first price market is flat. ``shift`` adds to every
    skill but last value's.
    """
    rows = []
    for variable in ("count", "price"):
        for i in range(markets):
            scale = 16.0 if variable == "count" else 1.0 + i
            base = scale * rng.uniform(0.02, 0.2) * (0.0 if variable == "price" and i == 0 else 1.0)
            luck = rng.normal(0.0, 0.08)
            for model in MODELS:
                for step in range(1, steps + 1):
                    rows.append(
                        _score(
                            rng, variable, demo_market(variable, i), model, step, base, scale, luck + shift
                        )
                    )
    return pd.DataFrame(rows, columns=list(SCORE_COLUMNS))


def _score(
    rng: np.random.Generator,
    variable: str,
    market: str,
    model: str,
    step: int,
    base: float,
    scale: float,
    luck: float,
) -> dict[str, object]:
    floor = base * (1.1 if step == 1 else 1 + 0.08 * step)
    skill = 0.0 if model == "last_value" else (SKILL[model] + luck) * (1 - 0.04 * step) + rng.normal(0, 0.01)
    loss, flat = floor * (1 - skill), base == 0
    out = {
        "variable": variable, "model": model, "market": market, "step": step, "n": 336 - step, "mae": 2 * loss,
        "rmse": 3 * loss, "mase": np.nan if flat else loss / base, "pinball": loss,
        "skill_pinball": np.nan if flat else skill, "skill_mae": np.nan if flat else skill - 0.05,
        "brier": loss / scale if variable == "count" else np.nan, "skill_brier": skill if variable == "count" else np.nan,
        "fallback_share": (1.0 if flat else 0.02) if model == "arima" else 0.0,
        "absent": loss if variable == "count" else np.nan, "unpredicted": loss / 2 if variable == "count" else np.nan,
        "dm": 30 * skill, "dm_p": np.nan if flat or model == "last_value" else float(np.exp(-60 * abs(skill))),
        "skill_low": np.nan if flat or model == "last_value" else skill - 0.1,
        "skill_high": np.nan if flat or model == "last_value" else skill + 0.1,
        "days": 0 if flat else 7,
        "source": market.split("@")[1],
        "class": "16 and more" if variable == "count" else "still" if flat else "moving",
        "scale": scale, "capacity": 16.0 if variable == "count" else np.nan,
    }  # fmt: skip
    off = {"combined_raw": -0.07, "last_value": 0.04}.get(model, 0.0)
    for percent in (50, 80, 90):
        out[f"coverage_{percent}"] = min(percent / 100 + off + rng.normal(0, 0.006), 1.0)
        out[f"coverage_{percent}_closed"] = min(out[f"coverage_{percent}"] + 0.05, 1.0)
        out[f"width_{percent}"] = loss * percent / 20
    return out | {"verdict": "" if model == "last_value" else verdict(out["skill_low"], out["skill_high"])}


def judged(table: pd.DataFrame, *, half: float = 0.02, days: int = 7) -> pd.DataFrame:
    """Return pooled rows with intervals of this half width, and their verdicts."""
    own = table["model"] != "last_value"
    skill = table["skill_pinball"].where(own)
    found = [verdict(value - half, value + half) for value in skill]
    return table.assign(
        skill_low=skill - half, skill_high=skill + half, days=np.where(table["skill_pinball"].notna(), days, 0),
        verdict=np.where(own, found, ""),
    )  # fmt: skip


def demo_daily(rng: np.random.Generator, *, markets: int, days: int, shift: float = 0.0) -> pd.DataFrame:
    """Return losses that rise in the second half, none of the first price market; the third day is missing."""
    rows = [
        [variable, model, demo_market(variable, i), START + pd.Timedelta(days=day), 48, loss]
        for variable in ("count", "price")
        for i in range(markets)
        for model in MODELS
        for day in range(days)
        if day != 2
        for skill in [SKILL[model] + (shift if model != "last_value" else 0.0)]
        for loss in [
            (1 - skill)
            * rng.uniform(0.4, 0.6)
            * (2 if day > days / 2 else 1)
            * (variable == "count" or i > 0)
        ]
    ]
    return pd.DataFrame(rows, columns=list(DAILY_COLUMNS))


def demo_accuracy(
    *, markets: int = 5, steps: int = 12, seed: int = 1, shift: float = 0.0, days: int = 8
) -> Accuracy:
    rng = np.random.default_rng(seed)
    scores = demo_scores(rng, markets=markets, steps=steps, shift=shift)
    bins = np.arange(10)
    reliability = [
        ["count", model, 0.05 + 0.1 * b, np.clip(0.05 + 0.1 * b + (0.1 if model == "markov" else 0.02) * np.sin(b), 0, 1), 100]
        for model in MODELS for b in bins
    ] + [
        ["price", model, level, np.clip(level + 0.04 * np.sin(6 * level), 0, 1), 1000] for model in MODELS for level in LEVELS
    ]  # fmt: skip
    referenced = scores.assign(reference=scores["brier"] / (1 - scores["skill_brier"]))
    spans = scores[["source"]].drop_duplicates().assign(start=START, end=START + pd.Timedelta(days=7))
    return Accuracy(
        scores=scores,
        pooled=judged(pooled_scores(referenced), days=days - 1),
        spans=spans,
        classes=judged(class_scores(referenced), days=days - 1),
        reliability=pd.DataFrame(reliability, columns=list(RELIABILITY_COLUMNS)),
        daily=demo_daily(rng, markets=markets, days=days, shift=shift),
        models=MODELS,
        default="combined",
        step=STEP,
        notes=("left out: aws/x/y/z (12 observed slots in the first half, at least 48 wanted)",),
    )


def demo_predictability(*, markets: int = 5, seed: int = 2) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = []
    for variable in ("count", "price"):
        for i in range(markets):
            row = {c: float(rng.uniform(0, 1)) for c in PREDICTABILITY}
            row |= {"variable": variable, "market": demo_market(variable, i), "slots": 672}
            if variable == "price" and i == 0:
                row |= {c: np.nan for c in row if c.startswith(("acf", "strength", "told"))}
            rows.append(row)
    return pd.DataFrame(rows, columns=list(PREDICTABILITY))


def demo_drift(markets: int = 5) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "variable": "count",
            "market": [demo_market("count", i) for i in range(markets)],
            "at": START + pd.Timedelta(days=4, hours=13),
            "found": "loss rose from 0.41 to 0.98",
        }
    )


if __name__ == "__main__":
    blocks = report_blocks(
        demo_accuracy(markets=9),
        data="a demonstration",
        notes=["a note"],
        background=Background(predictability=demo_predictability(markets=9), drift=demo_drift(9)),
    )
    page = Page(title="Forecast accuracy", blocks=blocks)
    Path(sys.argv[1]).write_text(render_page(page), encoding="utf-8")
