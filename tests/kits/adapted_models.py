"""Models of other libraries as predictors, and the library that each needs."""

from importlib.util import find_spec

import pytest

from slackwater.forecasting.adapters import from_mlforecast, from_sklearn, from_statsforecast


def ridge():
    from sklearn.linear_model import Ridge

    return from_sklearn(Ridge(), name="ridge")


def ets():
    from statsforecast.models import AutoETS

    return from_statsforecast(AutoETS(season_length=1), name="ets")


def lagged():
    from mlforecast import MLForecast
    from sklearn.linear_model import Ridge

    return from_mlforecast(MLForecast(models=[Ridge()], freq=1, lags=[1, 2, 3]), name="lagged")


#: Name -> what makes the predictor, and the library that it needs. Only scikit-learn is in the environment of the tests:
#: statsforecast asks for an older pandas, and mlforecast brings a tuner. Both run where somebody has installed them.
ADAPTED = {"ridge": (ridge, "sklearn"), "ets": (ets, "statsforecast"), "lagged": (lagged, "mlforecast")}


def adapted_models():
    """Return a parameter for every model, skipped without its library."""
    return [
        pytest.param(name, marks=pytest.mark.skipif(not find_spec(needs), reason=f"{needs} is not installed"))
        for name, (_, needs) in ADAPTED.items()
    ]
