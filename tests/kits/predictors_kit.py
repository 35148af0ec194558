"""The predictors for tests: those of the registry, and those of studies where their library is installed."""

from importlib.util import find_spec

import pytest

from slackwater.forecasting.predictors import PREDICTORS

#: Predictors of studies -> the library that they need.
STUDIES = {"dva": "jax"}


def registered():
    """Return a parameter for every predictor."""
    return [pytest.param(name) for name in sorted(PREDICTORS)] + [
        pytest.param(name, marks=pytest.mark.skipif(not find_spec(needs), reason=f"{needs} is not installed"))
        for name, needs in STUDIES.items()
    ]


def installed():
    """Return the predictors whose library is installed."""
    return sorted([*PREDICTORS, *(name for name, needs in STUDIES.items() if find_spec(needs))])
