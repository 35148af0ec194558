"""Our ARIMA estimation compared with statsmodels and statsforecast on real price series with gaps (decision 53).

A slot of half an hour has the newest reading in it, and is a gap without one. Each model is estimated on 1000 slots and forecasts
12 steps from every observed slot of the next. statsmodels is SARIMAX on the differenced values with a concentrated scale, its
fastest form with gaps; statsforecast (in the environment of the peers) gets the gaps, and the series with its gaps filled by the
last value. CPU seconds on one thread, in interleaved rounds: compare ratios.
"""

from __future__ import annotations

import json
import subprocess
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from statsmodels.tsa.statespace.sarimax import SARIMAX

from benchmarks.backtest_speed import PEERS, peers_environment
from slackwater.forecasting.predictors import arima
from slackwater.forecasting.series import Series

#: Part of the source, zone, instance type and product of each series.
SERIES = (
    ("tugot17", "all", "A100_80GB_PCIe", "per GPU, median"),
    ("tugot17", "all", "H100_80GB_PCIe", "per GPU, median"),
    ("tugot17", "all", "A100_80GB_SXM4", "per GPU, median"),
    ("prateek-s", "us-east-1a", "g2.2xlarge", "Linux/UNIX"),
    ("prateek-s", "us-east-1b", "g2.2xlarge", "Linux/UNIX"),
    ("hshazly", "us-east-1a", "g2.8xlarge", "Linux/UNIX"),
    ("hshazly", "us-east-1b", "g2.8xlarge", "Linux/UNIX"),
)
TRAINED, LATER, STEPS = 1000, 316, 12
#: Orders of the comparison of figures, and the order of the timed refits, a day later, from the coefficients of the first fit
#: (statsforecast takes none).
ORDERS = ((1, 0, 1), (0, 1, 1), (1, 1, 1), (2, 1, 2))
REFIT = (1, 1, 1)
DAY, ROUNDS = 48, 3


def run(data: Path) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    prices = pd.read_parquet(data / "prices.parquet")
    python = peers_environment()
    with subprocess.Popen(
        [str(python), str(PEERS / "arima.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as peer:
        rows = [compared(values_of(prices, *key), "/".join(key), peer) for key in SERIES]
    ratios = [name for name in rows[0] if name.startswith("cpu_")]
    return {
        "series": rows,
        "median": {name: _median(row.get(name) for row in rows) for name in [*ratios, *_errors(rows)]},
    }


def _errors(rows: Sequence[dict[str, Any]]) -> list[str]:
    return [name for name in rows[0] if name.startswith("mae_")]


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return round(float(np.median(known)), 3) if known else None


def values_of(prices: pd.DataFrame, source: str, zone: str, instance_type: str, product: str) -> np.ndarray:
    """Return the newest slots of a series, NaN in a gap."""
    own = prices[
        prices["source"].str.contains(source, regex=False)
        & (prices["zone"] == zone)
        & (prices["instance_type"] == instance_type)
        & prices["product"].fillna("").str.startswith(product)
    ].sort_values("timestamp")
    slots = own.set_index("timestamp")["spot_price_usd_per_hour"].resample("30min").last()
    return slots.to_numpy(dtype=float)[-TRAINED - LATER :]


def compared(values: np.ndarray, name: str, peer: subprocess.Popen[str]) -> dict[str, Any]:
    """Compare figures, CPU seconds and errors on a series."""
    trained, later = values[:TRAINED], values[DAY : TRAINED + DAY]
    filled = pd.Series(values).ffill().bfill().to_numpy()
    seen = np.flatnonzero(~np.isnan(values[TRAINED - 1 : -STEPS])) + TRAINED - 1
    out: dict[str, Any] = {"name": name, "gaps": round(float(np.isnan(trained).mean()), 3)}
    out["figures"] = {str(order): figures(trained, order, peer) for order in ORDERS}

    arima.best_order(trained[:200])  # compilation
    seconds: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        own, took = timed(lambda: arima.best_order(trained))
        seconds.setdefault("ours_select", []).append(took)
        theirs = send_request(peer, filled, None, seen.tolist())
        seconds.setdefault("statsforecast_select", []).append(theirs["fit_seconds"])
        seconds.setdefault("statsforecast_forecast", []).append(theirs["forecast_seconds"])
        near, start = fitted(trained, REFIT), sarimax(trained, REFIT).fit(disp=0)
        seconds.setdefault("ours_refit", []).append(timed(lambda near=near: fitted(later, REFIT, near))[1])
        took = timed(lambda start=start: sarimax(later, REFIT).fit(start.params, disp=0))[1]
        seconds.setdefault("statsmodels_refit", []).append(took)
        same = send_request(peer, filled[DAY:], REFIT, [])
        seconds.setdefault("statsforecast_refit", []).append(same.get("fit_seconds", np.nan))
        seconds.setdefault("ours_forecast", []).append(timed(lambda own=own: from_arma(own, values, seen))[1])
        took = timed(lambda start=start: from_sarimax(start, REFIT, values, seen))[1]
        seconds.setdefault("statsmodels_forecast", []).append(took)
    chosen, took = timed(lambda: selected(trained))
    seconds["statsmodels_select"] = [took]
    mean = {key: float(np.median(value)) for key, value in seconds.items()}
    for task in ("select", "refit", "forecast"):
        for library in ("statsmodels", "statsforecast"):
            out[f"cpu_{task}_{library}_over_ours"] = round(
                mean[f"{library}_{task}"] / mean[f"ours_{task}"], 2
            )
    out["ms_ours"] = {task: round(1e3 * mean[f"ours_{task}"], 2) for task in ("select", "refit", "forecast")}

    order, result = chosen
    with_gaps = send_request(peer, values, None, seen.tolist())
    points = {
        "ours": from_arma(own, values, seen),
        "ours_or_walk": from_arma(guarded(trained, own), values, seen),
        "statsmodels": from_sarimax(result, order, values, seen),
        "statsforecast_filled": np.array(theirs["forecasts"]),
        "statsforecast_gaps": np.array(with_gaps["forecasts"]) if "forecasts" in with_gaps else None,
    }
    out["orders"] = {
        "ours": own.order, "statsmodels": order, "statsforecast_filled": theirs["order"],
        "statsforecast_gaps": with_gaps.get("order", with_gaps.get("error")),
    }  # fmt: skip
    last = absolute_error(np.repeat(values[seen][:, None], STEPS, axis=1), values, seen)
    for library, found in points.items():
        error = None if found is None else absolute_error(found, values, seen) / last
        out[f"mae_{library}_over_last_value"] = error if error is None else round(error, 4)
    return out


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def send_request(
    peer: subprocess.Popen[str], values: np.ndarray, order: Sequence[int] | None, origins: list[int]
) -> dict[str, Any]:
    """Send a request to statsforecast and return its response."""
    listed = [None if np.isnan(value) else value for value in values.tolist()]
    request = {"values": listed, "trained": TRAINED, "order": order, "origins": origins}
    peer.stdin.write(json.dumps(request) + "\n")
    peer.stdin.flush()
    response: dict[str, Any] = json.loads(peer.stdout.readline())
    return response


# ---
# The same model in each library: an ARMA of the differenced values, with a mean if d = 0.


def table_of(values: np.ndarray, d: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the differenced values and the regressor."""
    return (np.diff(values), None) if d else (values, np.ones(values.size))


def sarimax(values: np.ndarray, order: tuple[int, int, int]) -> SARIMAX:
    p, d, q = order
    changes, exog = table_of(values, d)
    return SARIMAX(changes, exog=exog, order=(p, 0, q), trend="n", concentrate_scale=True)


def fitted(values: np.ndarray, order: tuple[int, int, int], near: arima.Arma | None = None) -> arima.Arma:
    """Return our estimate of an order, with every observed row scored as in the libraries."""
    p, d, q = order
    data = arima.difference(values, np.zeros((values.size, 0)), d)
    data = arima.DifferencedSeries(d=d, table=data.table, scored=~np.isnan(data.table[:, 0]))
    found = arima.estimate_order(data, p, q, near)
    return found


def figures(values: np.ndarray, order: tuple[int, int, int], peer: subprocess.Popen[str]) -> dict[str, Any]:
    """Return differences of log-likelihood and coefficients at an order, and of forecasts with the same coefficients."""
    p, d, q = order
    own = fitted(values, order)
    changes = table_of(values, d)[0]
    table = changes[:, None] if d else np.column_stack([changes, np.ones(changes.size)])
    scored = ~np.isnan(changes)
    reached = arima.log_likelihood(table, scored, own.phi, own.theta)
    result = sarimax(values, order).fit(disp=0, maxiter=200)
    mean = result.params[: 1 - d]
    phi, theta = result.params[1 - d : 1 - d + p], result.params[1 - d + p : 1 - d + p + q]
    states = arima.filtered_states(changes - (0.0 if d else mean[0]), phi, theta)
    point = arima.expected_ahead(states[-1:], phi, STEPS)[0] + (0.0 if d else mean[0])
    theirs = result.forecast(STEPS, exog=None if d else np.ones((STEPS, 1)))
    response = send_request(peer, values, order, [])
    filled = send_request(peer, pd.Series(values).ffill().bfill().to_numpy(), order, [])
    zeros = "coefficients" in response and all(
        value == 0 for name, value in response["coefficients"].items() if name[:2] in ("ar", "ma")
    )
    return {
        "log_likelihood_ours_less_statsmodels": round(reached - float(result.llf), 4),
        "coefficients_apart": round(float(np.abs(np.r_[own.phi - phi, own.theta - theta]).max()), 5),
        "forecasts_apart": float(f"{np.abs(point - theirs).max():.2g}"),
        "converged_statsmodels": bool(result.mle_retvals["converged"]),
        "statsforecast_with_gaps": response.get("error", "every coefficient is 0" if zeros else "estimated"),
        "statsforecast_filled": filled.get("error", "estimated"),
    }


def selected(values: np.ndarray) -> tuple[tuple[int, int, int], Any]:
    """Return the order of minimal AICc over our grid by statsmodels, on the rows that we score, with its result."""
    best: tuple[float, tuple[int, int, int], Any] | None = None
    for d in (0, 1):
        scored = arima.difference(values, np.zeros((values.size, 0)), d).scored
        n = int(scored.sum())
        for p in range(3):
            for q in range(3):
                model = sarimax(values, (p, d, q))
                result = model.fit(disp=0) if p + q or not d else model.filter(np.zeros(0))
                k = p + q + 2 - d
                aicc = -2 * result.llf_obs[scored].sum() + 2 * k + 2 * k * (k + 1) / (n - k - 1)
                if best is None or aicc < best[0]:
                    best = (aicc, (p, d, q), result)
    return best[1], best[2]


def from_arma(model: arima.Arma, values: np.ndarray, origins: np.ndarray) -> np.ndarray:
    """Return our forecasts from every origin, shape (origins, STEPS)."""
    return arima.expected_values(model, series_of(values), origins, STEPS)


def series_of(values: np.ndarray) -> Series:
    return Series(
        variable="price", values=values, upper=np.full(values.size, np.inf), newest=np.arange(values.size),
        slots_per_day=0, first_slot=0, step=pd.Timedelta("30min"),
    )  # fmt: skip


def guarded(values: np.ndarray, model: arima.Arma) -> arima.Arma:
    """Return the model or the random walk, as the predictor chooses by the errors on the training slots."""
    return arima._nearest(series_of(values), [model, arima.random_walk(values)])


def from_sarimax(
    result: Any, order: tuple[int, int, int], values: np.ndarray, origins: np.ndarray
) -> np.ndarray:
    """Return the forecasts of statsmodels from every origin: a filter pass with fixed parameters, then Z T^k a."""
    _, d, _ = order
    filtered = sarimax(values, order).filter(result.params)
    transition, design = filtered.filter_results.transition[:, :, 0], filtered.filter_results.design[0, :, 0]
    mean = 0.0 if d else float(result.params[0])
    state = filtered.filtered_state[:, origins - d]
    steps = []
    for _ in range(STEPS):
        state = transition @ state
        steps.append(mean + design @ state)
    point = np.array(steps).T
    return values[origins][:, None] + np.cumsum(point, axis=1) if d else point


def absolute_error(points: np.ndarray, values: np.ndarray, origins: np.ndarray) -> float:
    """Return the mean absolute error over origins and steps with an observed value."""
    actual = values[origins[:, None] + np.arange(1, STEPS + 1)]
    return float(np.nanmean(np.abs(points - actual)))
