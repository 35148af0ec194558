"""Answer requests for ARIMA models of statsforecast, a JSON object a line; runs in the environment of the peers.

A request has ``values`` (null in a gap), ``order`` (null: AutoARIMA over p, q <= 2 and d <= 1, all orders tried) and ``origins``:
the last slots (indices) from which 12 steps are forecast with the estimated coefficients. The response has the order, the
coefficients, the log-likelihood, the forecasts and the CPU seconds of estimation and forecasts, or ``error``.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import numpy as np

STEPS = 12


def main() -> None:
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    from statsforecast.models import ARIMA, AutoARIMA

    values = np.array(request["values"], dtype=float)
    trained = values[: request["trained"]]
    if request["order"] is None:
        model = AutoARIMA(
            max_p=2, max_q=2, max_d=1, max_order=4, seasonal=False, stepwise=False, approximation=False, allowdrift=False
        )  # fmt: skip
    else:
        model = ARIMA(order=tuple(request["order"]), include_mean=request["order"][1] == 0)
    began = time.process_time()
    try:
        model.fit(trained)
    except (ValueError, IndexError, ZeroDivisionError, np.linalg.LinAlgError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    fitted = time.process_time()
    found = [model.forward(values[: origin + 1], STEPS)["mean"].tolist() for origin in request["origins"]]
    ended = time.process_time()
    p, q, *_, d, _ = model.model_["arma"]
    return {
        "order": [p, d, q],
        "coefficients": {name: float(value) for name, value in model.model_["coef"].items()},
        "log_likelihood": float(model.model_["loglik"]),
        "forecasts": found,
        "fit_seconds": fitted - began,
        "forecast_seconds": ended - fitted,
    }


if __name__ == "__main__":
    main()
