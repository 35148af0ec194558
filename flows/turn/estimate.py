"""Estimated forecasters of a turn: read back where the warehouse has them, made side by side where it has not (M6.4).

A forecaster that learns from several markets is estimated once per source, variable and refit time on every followed market
of the source, any other once per market. What is made is kept with the forecasts, so between two refits a turn estimates nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pandas as pd

from flows.config import Settings
from flows.turn.context import Turn
from flows.turn.markets import Followed, step_of
from forecasting.origins.cohort import Basis, Cohort
from forecasting.origins.forecasts import Batch, estimations
from forecasting.origins.timetable import VARIABLES, Cadence, Timetable
from forecasting.predictor import FittedPredictor
from forecasting.predictors import make_predictor
from forecasting.quantiles import Variable
from forecasting.series import EPOCH, Series, series_of
from forecasting.state import restored, state_text
from warehouse.errors import ForecastError
from warehouse.history import History
from warehouse.issued.fitted import FittedState, forget_fitted, load_fitted, save_fitted
from warehouse.store.connection import Store

#: Estimations of single markets that make one call: each takes a fraction of a second.
ALONE_A_CALL = 24
#: Settings that change what a forecaster is estimated on, or when: those of others are never used.
_TELLING = (
    "history_days",
    "refit_hours",
    "price_history_days",
    "price_refit_hours",
    "trust",
    "assumed_spot_share",
    "assumed_capacity",
)


def timetable_of(settings: Settings) -> Timetable:
    """The refit timetable of the settings."""
    hours, days = settings.refit_hours, settings.history_days
    return Timetable(
        count=Cadence(refit_every=pd.Timedelta(hours=hours), lookback=pd.Timedelta(days=days)),
        price=Cadence(
            refit_every=pd.Timedelta(hours=settings.price_refit_hours or hours),
            lookback=pd.Timedelta(days=settings.price_history_days or days),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a turn forecasts from: batches by market and model; states that were made now, and those that could not be read."""

    batches: dict[Followed, dict[str, list[Batch]]]
    made: list[FittedState]
    unreadable: list[FittedState]

    def save(self, store: Store) -> None:
        """Keep what was made, in the place of what could not be read."""
        forget_fitted(store, self.unreadable)
        save_fitted(store, self.made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An estimation that is needed: of ``model`` on one variable of a cohort called ``panel``, at slot ``at`` (since the epoch)."""

    model: str
    panel: str
    variable: Variable
    at: int
    cohort: Cohort = field(compare=False)

    @property
    def time(self) -> pd.Timestamp:
        """When its slot begins."""
        return EPOCH + self.at * self.cohort.series[0].step


#: Origins by market and model.
Missing = Mapping[Followed, Mapping[str, Sequence[pd.Timestamp]]]
#: The texts of models that were estimated before they are asked for.
Estimates = Mapping[Wanted, str]
NO_ESTIMATES: Estimates = MappingProxyType({})
#: By market and model: the estimations of both variables, and the origins that are forecast from them.
_Needed = dict[Followed, dict[str, list[tuple[dict[Variable, Wanted], tuple[pd.Timestamp, ...]]]]]


def prepare(
    turn: Turn,
    histories: Mapping[Followed, History],
    missing: Missing,
    ahead: Estimates = NO_ESTIMATES,
) -> Prepared:
    """Everything that is needed to forecast the markets in ``missing``, by model at ascending origins.

    ``histories`` are those of all followed markets: markets of one source are a panel, whether they lack forecasts or not.
    Each must reach back to `Timetable.start` of every origin of its source. The estimation and the forecasts read, for an
    origin, only what was known at it. Where a stored estimation is there, it is used as it was made; else one made ``ahead``.
    """
    needed = _needed(turn, histories, missing)
    wanted = _wanted(needed)
    fitted, unreadable = _stored(turn, wanted)
    lacking = [one for one in wanted if one not in fitted]
    fresh = _estimated(turn, [one for one in lacking if one not in ahead])
    made = {one: ahead[one] if one in ahead else fresh[one] for one in lacking}
    fitted |= {one: _restored(one, text) for one, text in made.items()}
    basis = _basis(fitted)
    return Prepared(
        batches={
            followed: {
                model: [
                    Batch(origins=origins, basis={variable: basis[one] for variable, one in pair.items()})
                    for pair, origins in own
                ]
                for model, own in models.items()
            }
            for followed, models in needed.items()
        },
        made=[_state(turn, one, text) for one, text in made.items()],
        unreadable=unreadable,
    )


def _basis(fitted: Mapping[Wanted, FittedPredictor]) -> dict[Wanted, Basis]:
    """What is forecast from each estimation; what markets may see of each other is worked out once for all models."""
    peers: dict[tuple[str, Variable, int], tuple[Series, ...]] = {}
    found: dict[Wanted, Basis] = {}
    for one, model in fitted.items():
        predictor, place = make_predictor(one.model), (one.panel, one.variable, one.at)
        if predictor.pooled and place not in peers:
            peers[place] = one.cohort.peers(one.at)
        found[one] = Basis(
            predictor=one.model,
            at=one.at,
            start=one.cohort.start(one.at),
            fitted=model,
            peers=peers[place] if predictor.pooled else (),
        )
    return found


def estimate_ahead(
    turn: Turn, histories: Mapping[Followed, History], missing: Missing, before: Estimates
) -> dict[Wanted, str]:
    """What `prepare` will have to estimate for ``missing``, as far as it is not stored: from ``before`` or made now.

    Nothing is kept in the warehouse until forecasts are made of it.
    """
    wanted = _wanted(_needed(turn, histories, missing))
    fitted, _ = _stored(turn, wanted)
    lacking = [one for one in wanted if one not in fitted]
    fresh = _estimated(turn, [one for one in lacking if one not in before])
    return {one: before[one] if one in before else fresh[one] for one in lacking}


def _needed(turn: Turn, histories: Mapping[Followed, History], missing: Missing) -> _Needed:
    """By market and model the estimations that ``missing`` is forecast from, each with its origins."""
    pools = {source: _cohorts(own, turn.settings) for source, own in _by_source(histories).items()}
    names = {source: panel_name(own) for source, own in _by_source(histories).items()}
    needed: _Needed = {}
    for followed, models in missing.items():
        history = histories[followed]
        alone = _cohorts([history], turn.settings)
        for model, origins in models.items():
            together = make_predictor(model).pooled
            cohorts = pools[followed.source] if together else alone
            name = names[followed.source] if together else followed.key
            needed.setdefault(followed, {})[model] = [
                (
                    {
                        variable: Wanted(
                            model=model, panel=name, variable=variable, at=at, cohort=cohorts[variable]
                        )
                        for variable, at in zip(VARIABLES, fits, strict=True)
                    },
                    own,
                )
                for fits, own in estimations(cohorts, history, origins)
            ]
    return needed


def _wanted(needed: _Needed) -> list[Wanted]:
    every = (pair for models in needed.values() for own in models.values() for pair, _ in own)
    return list(dict.fromkeys(one for pair in every for one in pair.values()))


def _by_source(histories: Mapping[Followed, History]) -> dict[str, list[History]]:
    found: dict[str, list[History]] = {}
    for followed, history in histories.items():
        found.setdefault(followed.source, []).append(history)
    return found


def _cohorts(histories: Sequence[History], settings: Settings) -> dict[Variable, Cohort]:
    """Both variables of histories that are estimated together."""
    timetable = timetable_of(settings)
    return {
        variable: Cohort(
            series=tuple(series_of(one, variable) for one in histories), cadence=timetable.of(variable)
        )
        for variable in VARIABLES
    }


def panel_name(histories: Sequence[History]) -> str:
    """``source:hash``, the hash of which markets they are: another set of markets is another panel."""
    keys = sorted((one.market.key, one.source) for one in histories)
    return f"{keys[0][1]}:{_short([f'{market}@{source}' for market, source in keys])}"


def stored_name(model: str, settings: Settings) -> str:
    """The name a model's estimations are kept under, ``model:hash``: with other settings of `_TELLING` they are others."""
    values = settings.model_dump(mode="json")
    return f"{model}:{_short([values[name] for name in _TELLING])}"


def _short(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def _stored(turn: Turn, wanted: Sequence[Wanted]) -> tuple[dict[Wanted, FittedPredictor], list[FittedState]]:
    """The wanted estimations that are stored, and the stored ones that cannot be read any more."""
    groups: dict[tuple[str, pd.Timestamp], list[Wanted]] = {}
    for one in wanted:
        groups.setdefault((one.model, one.time), []).append(one)
    found: dict[Wanted, FittedPredictor] = {}
    unreadable: list[FittedState] = []
    for (model, at), own in groups.items():
        kept = load_fitted(
            turn.store,
            predictor=stored_name(model, turn.settings),
            step=step_of(turn.settings),
            panels=list(dict.fromkeys(one.panel for one in own)),
            fitted_at=at,
            known_at=turn.at,
        )
        for one in own:
            state = kept.get((one.panel, one.variable))
            if state is None:
                continue
            try:
                found[one] = _restored(one, state.state)
            except ForecastError as error:
                turn.say(f"{model} of {one.panel} is estimated again at {at}: {error}")
                unreadable.append(state)
    return found, unreadable


def _restored(wanted: Wanted, text: str) -> FittedPredictor:
    make_predictor(wanted.model)  # what its states are made of is known once it is imported
    fitted: FittedPredictor = restored(text)
    return fitted


def _state(turn: Turn, wanted: Wanted, text: str) -> FittedState:
    """An estimation as it is kept: it knew what was known at its slot, whenever it was made."""
    return FittedState(
        predictor=stored_name(wanted.model, turn.settings), variable=wanted.variable, panel=wanted.panel,
        step=step_of(turn.settings), fitted_at=wanted.time, known_at=wanted.time, state=text,
    )  # fmt: skip


def _estimated(turn: Turn, wanted: Sequence[Wanted]) -> dict[Wanted, str]:
    """The wanted estimations made now, as text: those on one panel in one call, single markets in parcels.

    What is estimated on one panel has parts in common, which are made once (`forecasting.predictors.remembered`).
    """
    pooled = {one.model: make_predictor(one.model).pooled for one in wanted}
    shared: dict[tuple[str, int], list[Wanted]] = {}
    for one in sorted(wanted, key=lambda one: one.panel):
        shared.setdefault((one.panel if pooled[one.model] else "", one.at), []).append(one)
    alone = [one for (panel, _), own in shared.items() if not panel for one in own]
    alone.sort(key=lambda one: one.panel)
    parcels = [own for (panel, _), own in shared.items() if panel]
    parcels += [alone[i : i + ALONE_A_CALL] for i in range(0, len(alone), ALONE_A_CALL)]
    if not parcels:
        return {}
    turn.say(f"estimate {(len(wanted) - len(alone)) // 2} panels and {len(alone) // 2} single markets")
    done = turn.fan(estimate, [{"parcel": parcel} for parcel in parcels])
    return {
        one: text
        for parcel, made in zip(parcels, done, strict=True)
        for one, text in zip(parcel, made, strict=True)
    }


def estimate(parcel: Sequence[Wanted]) -> list[str]:
    """Estimate each of a parcel, as text."""
    return [state_text(one.cohort.estimate(make_predictor(one.model), one.at)) for one in parcel]
