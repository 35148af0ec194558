"""Registry of predictors by name. A predictor's module is imported when the predictor is created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.plugins import Registry

if TYPE_CHECKING:
    from slackwater.forecasting.predictor import FittedPredictor, Panel, Predictor

#: Entry points of predictors in other packages: a function or class without parameters that creates one.
GROUP = "slackwater.predictors"

#: The reference of every skill (M6.5), and the default forecaster of plans.
FLOOR, DEFAULT = "last_value", "combined"
#: Predictor name as typed by users -> function that creates it with default settings, imported at first use.
PREDICTORS: Registry[Callable[[], Predictor]] = Registry(
    {
        "last_value": "last_value:last_value",
        "seasonal_naive": "seasonal_naive:seasonal_naive",
        "arima": "arima:arima",
        "lightgbm": "lightgbm:lightgbm_predictor",
        "markov": "markov:markov",
        "smoothing": "combined:smoothing",
        "combined": "combined:combined",
    },
    package=__name__,
    group=GROUP,
)


def check_predictor(name: str) -> None:
    """Raise `SettingsError`, listing the known names, for an unknown predictor."""
    if name not in PREDICTORS:
        raise SettingsError(
            f"predictor {name!r}",
            expected=f"one of {', '.join(PREDICTORS)}, an entry point of {GROUP}, or module:Name",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RenamedPredictor:
    """Predictor of another package under the name by which users know it: forecasts are stored and found by that name."""

    name: str
    predictor: Predictor

    @property
    def pooled(self) -> bool:
        """Whether the predictor is estimated on all markets of a source together."""
        return self.predictor.pooled

    def fit(self, panel: Panel) -> FittedPredictor:
        """Estimate the predictor."""
        return self.predictor.fit(panel)


def make_predictor(name: str) -> Predictor:
    """Create a predictor by name, entry point or ``module:Name``; raises `SettingsError` for an unknown name."""
    check_predictor(name)
    predictor = PREDICTORS[name]()
    return predictor if predictor.name == name else RenamedPredictor(name=name, predictor=predictor)
