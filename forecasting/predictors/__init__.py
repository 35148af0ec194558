"""Registry of predictors by name. A predictor's module is imported when the predictor is created."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.plugins import find_plugin

if TYPE_CHECKING:
    from slackwater.forecasting.predictor import FittedPredictor, Panel, Predictor

#: Entry points of predictors in other packages: a function or class without parameters that creates one.
GROUP = "slackwater.predictors"
#: Tags of a predictor: measured in every turn by default, compared with the default predictor on the report page, part of the
#: experiment on choosing among forecasters, and part of the quick version of that experiment.
TURN, COMPARED, EXPERIMENTS, FAST = "turn", "compared", "experiments", "fast"


@dataclass(frozen=True, slots=True)
class Entry:
    """Registry entry: ``module:function`` that creates the predictor with default settings, and its tags."""

    factory: str
    tags: frozenset[str] = frozenset({TURN})


def _own(place: str, *tags: str) -> Entry:
    return Entry(f"slackwater.forecasting.predictors.{place}", frozenset({TURN, *tags}))


#: The reference of every skill (M6.5), and the default forecaster of plans.
FLOOR, DEFAULT = "last_value", "combined"
#: Predictor name as typed by users -> entry.
PREDICTORS: dict[str, Entry] = {
    "last_value": _own("last_value:last_value", COMPARED, EXPERIMENTS, FAST),
    "seasonal_naive": _own("seasonal_naive:seasonal_naive", COMPARED),
    "arima": _own("arima:arima", COMPARED, EXPERIMENTS),
    "lightgbm": _own("lightgbm:lightgbm_predictor", COMPARED, EXPERIMENTS),
    "markov": _own("markov:markov", EXPERIMENTS, FAST),
    "smoothing": _own("combined:smoothing", EXPERIMENTS, FAST),
    "combined": _own("combined:combined", EXPERIMENTS),
    # `combined` without recalibration by past values: shown on the report page for comparison, never used for plans (M6.6).
    "uncalibrated": Entry("slackwater.forecasting.predictors.combined:uncalibrated", frozenset()),
}


def predictor_names(tag: str) -> tuple[str, ...]:
    """Return the names of the predictors with a tag, in the order of `PREDICTORS`."""
    return tuple(name for name, entry in PREDICTORS.items() if tag in entry.tags)


def check_predictor(name: str) -> None:
    """Raise `SettingsError`, listing the known names, for an unknown predictor."""
    if name not in PREDICTORS and find_plugin(GROUP, name) is None:
        raise SettingsError(
            f"predictor {name!r}",
            expected=f"one of {', '.join(PREDICTORS)}, an entry point of {GROUP}, or module:Name",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """Predictor of another package under the name by which users know it: forecasts are stored and found by that name."""

    name: str
    predictor: Predictor

    @property
    def pooled(self) -> bool:
        """As the predictor."""
        return self.predictor.pooled

    def fit(self, panel: Panel) -> FittedPredictor:
        """Estimate the predictor."""
        return self.predictor.fit(panel)


def make_predictor(name: str) -> Predictor:
    """Create a predictor by name with its default settings; of another package by its entry point or ``module:Name``.

    Raises `SettingsError` for an unknown name.
    """
    check_predictor(name)
    if name not in PREDICTORS:
        create: Any = find_plugin(GROUP, name)
        provided: Predictor = create()
        return provided if provided.name == name else Renamed(name=name, predictor=provided)
    entry = PREDICTORS[name]
    module, _, function = entry.factory.partition(":")
    make: Callable[[], Predictor] = getattr(import_module(module), function)
    return make()
