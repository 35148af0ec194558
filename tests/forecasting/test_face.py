"""The public names of `forecasting`, loaded on first use."""

import subprocess
import sys

import pandas as pd
from series_kit import wandering

from slackwater import forecasting


def test_the_face_is_what_it_is_said_to_be():
    assert forecasting.__all__ == ["Forecast", "Predictor", "Series", "backtest", "forecast", "score"]
    assert all(getattr(forecasting, name) is not None for name in forecasting.__all__)


def test_looking_at_it_loads_nothing():
    code = "import sys, slackwater.forecasting; print([m for m in ('numpy', 'pandas', 'lightgbm', 'numba') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_forecast_and_how_good_its_like_were():
    history = wandering(300)
    now = forecasting.forecast(history, "markov", horizon=6)
    assert now.issued_at == history.slots[-1]
    origins = list(history.slots[200:280:8])
    made = [
        one
        for name in ("last_value", "markov")
        for own in forecasting.backtest([history], name, origins=origins, horizon=6).values()
        for one in own
    ]
    table = forecasting.score(made, history)
    assert set(table["model"]) == {"last_value", "markov"}
    then = forecasting.forecast(history.until(origins[3]), "markov", horizon=6)
    pd.testing.assert_frame_equal(then.frame, next(f for f in made[10:] if f.issued_at == origins[3]).frame)
