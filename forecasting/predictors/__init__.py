"""The predictors by name: where each is made, and in which lists it stands. Heavy libraries are imported when one is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from warehouse.errors import SettingsError

if TYPE_CHECKING:
    from forecasting.predictor import Predictor

#: What a predictor may be tagged with: it is measured in every turn unless the settings say otherwise, the report's page
#: compares the default with it, the experiment of choosing among forecasters has it, and its quick form too.
TURN, COMPARED, EXPERIMENTS, FAST = "turn", "compared", "experiments", "fast"


@dataclass(frozen=True, slots=True)
class Entry:
    """``module:function`` that makes the predictor with its default settings, and the lists it stands in.

    ``needs``: a library that only the extra of the predictor's name installs ("" if there is none).
    """

    factory: str
    tags: frozenset[str] = frozenset({TURN})
    needs: str = ""

    @property
    def installed(self) -> bool:
        """Whether what it needs is there; nothing is imported to see it."""
        return not self.needs or find_spec(self.needs) is not None


def _own(place: str, *tags: str) -> Entry:
    return Entry(f"forecasting.predictors.{place}", frozenset({TURN, *tags}))


#: What every skill is measured against (M6.5), and what plans are made from unless the settings name another.
FLOOR, DEFAULT = "last_value", "combined"
#: The name that a user types -> where the predictor is.
PREDICTORS: dict[str, Entry] = {
    "last_value": _own("last_value:last_value", COMPARED, EXPERIMENTS, FAST),
    "seasonal_naive": _own("seasonal_naive:seasonal_naive", COMPARED),
    "arima": _own("arima:arima", COMPARED, EXPERIMENTS),
    "lightgbm": _own("lightgbm:lightgbm_predictor", COMPARED, EXPERIMENTS),
    "markov": _own("markov:markov", EXPERIMENTS, FAST),
    "smoothing": _own("combined:smoothing", EXPERIMENTS, FAST),
    "combined": _own("combined:combined", EXPERIMENTS),
    # `combined` before past values correct its intervals: shown beside it on the report's page, never used (M6.6).
    "uncalibrated": Entry("forecasting.predictors.combined:uncalibrated", frozenset()),
    # A diffusion variational autoencoder, beside the others where it is asked for by name.
    "dva": Entry("forecasting.predictors.dva:dva", frozenset(), needs="jax"),
}


def predictor_names(tag: str) -> tuple[str, ...]:
    """The names that stand in a list, in the order of `PREDICTORS`."""
    return tuple(name for name, entry in PREDICTORS.items() if tag in entry.tags)


def check_predictor(name: str) -> None:
    """Raise `SettingsError` with the known names for a predictor that there is not."""
    if name not in PREDICTORS:
        raise SettingsError(f"predictor {name!r}", expected=f"one of {', '.join(PREDICTORS)}")


def make_predictor(name: str) -> Predictor:
    """The predictor of that name with its default settings.

    Raises `SettingsError` on an unknown one, and on one whose library is not installed.
    """
    check_predictor(name)
    entry = PREDICTORS[name]
    if not entry.installed:
        raise SettingsError(
            f"predictor {name!r} needs {entry.needs}, which is not installed",
            remedy=f'install it with `pip install "slackwater[{name}]"`',
        )
    module, _, function = entry.factory.partition(":")
    make: Callable[[], Predictor] = getattr(import_module(module), function)
    return make()
