"""The registered predictors for tests: predictors without their library are skipped, naming the extra that installs it."""

import pytest

from slackwater.forecasting.predictors import PREDICTORS

#: Parts of another predictor that share its forecast code: only the long form tests them separately as well.
PARTS = ("uncalibrated",)


def registered():
    """Return a parameter for every name in `PREDICTORS`."""
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
    """Return the names whose library is installed."""
    return [name for name in sorted(PREDICTORS) if PREDICTORS[name].installed]
