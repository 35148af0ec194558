"""The registered predictors for tests: those whose library is not installed are skipped, with the extra that brings it."""

import pytest

from forecasting.predictors import PREDICTORS

#: What is a part of another predictor, and is forecast by the same code: the long form looks at it by itself as well.
PARTS = ("uncalibrated",)


def registered():
    """A parameter for every name in `PREDICTORS`."""
    return [
        pytest.param(
            name,
            marks=[
                pytest.mark.skipif(
                    not PREDICTORS[name].installed,
                    reason=f"{PREDICTORS[name].needs} is not installed: pip install 'slackwater[{name}]'",
                ),
                *([pytest.mark.slow] if name in PARTS else []),
            ],
        )
        for name in sorted(PREDICTORS)
    ]


def installed():
    """The names whose library is installed."""
    return [name for name in sorted(PREDICTORS) if PREDICTORS[name].installed]
