"""Estimates of predictors that the forecasts of a turn need: the stored estimates, and new estimates (M6.4).

A panel forecaster is estimated once per source, variable and refit time on all followed markets of
the source, any other forecaster once per market. Estimates are stored with the forecasts, so
between two refits a turn estimates nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket, step_of
from slackwater.flows.turn.context import Turn, TurnValues
from slackwater.forecasting.origins import (
    VARIABLES,
    Basis,
    Cadence,
    Cohort,
    OriginBatch,
    Timetable,
    estimations,
)
from slackwater.forecasting.predictor import FittedPredictor, restore_model, state_text
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.quantiles import Variable
from slackwater.forecasting.series import EPOCH, Series, series_of
from slackwater.warehouse.amounts import plural
from slackwater.warehouse.errors import ForecastError
from slackwater.warehouse.history import History
from slackwater.warehouse.issued import FittedState, load_fitted

ALONE_A_CALL = 24  # Single-market estimations per call: each takes a fraction of a second

#: Settings that change the data of an estimation or its time: estimates under other settings are not reused.
ESTIMATION_SETTINGS = (
    "history_days",
    "refit_hours",
    "price_history_days",
    "price_refit_hours",
    "trust",
    "assumed_spot_share",
    "assumed_capacity",
)


def timetable_of(settings: Settings) -> Timetable:
    """Return the refit timetable of the settings."""
    hours, days = settings.refit_hours, settings.history_days
    return Timetable(
        count=Cadence(refit_every=pd.Timedelta(hours=hours), lookback=pd.Timedelta(days=days)),
        price=Cadence(
            refit_every=pd.Timedelta(hours=settings.price_refit_hours or hours),
            lookback=pd.Timedelta(days=settings.price_history_days or days),
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastInput:
    """Input of a turn's forecasts: batches by market and model, and new estimates, which replace the unreadable ones."""

    batches: dict[FollowedMarket, dict[str, list[OriginBatch]]]
    estimates: tuple[FittedState, ...]
    unreadable: tuple[FittedState, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimation:
    """A required estimation of ``model`` on a variable of the cohort ``panel``, at slot ``at`` since the epoch."""

    model: str
    panel: str
    variable: Variable
    at: int
    cohort: Cohort = field(compare=False)

    @property
    def time(self) -> pd.Timestamp:
        """Start of the slot."""
        return EPOCH + self.at * self.cohort.series[0].step


Missing = Mapping[FollowedMarket, Mapping[str, Sequence[pd.Timestamp]]]  # Origins by market and model
Estimates = Mapping[Estimation, str]  # Serialised estimates computed in advance

NO_ESTIMATES: Estimates = MappingProxyType({})

#: By market and model, the estimations of both variables with the origins that are forecast from them.
_Needed = dict[FollowedMarket, dict[str, list[tuple[dict[Variable, Estimation], tuple[pd.Timestamp, ...]]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimations:
    """Required estimations by market and model, those of them that are stored, and stored states that cannot be read."""

    needed: _Needed
    fitted: Mapping[Estimation, FittedPredictor]
    unreadable: tuple[FittedState, ...]


def read_estimations(
    turn: Turn, histories: Mapping[FollowedMarket, History], missing: Missing
) -> Estimations:
    """Return the estimations that the forecasts in ``missing`` need, by model at ascending origins, with the stored states.

    ``histories`` are those of all followed markets: the markets of one source are a panel, whether
    they lack forecasts or not. Each history must reach back to `Timetable.start` of every origin of
    its source. Estimation and forecast use, for an origin, only data known at that origin.
    """
    needed = _needed_estimations(turn, histories, missing)
    groups: dict[tuple[str, pd.Timestamp], list[Estimation]] = {}
    for estimation in _all_estimations(needed):
        groups.setdefault((estimation.model, estimation.time), []).append(estimation)
    fitted: dict[Estimation, FittedPredictor] = {}
    unreadable: list[FittedState] = []
    for (model, at), needed_here in groups.items():
        states = turn.read(
            load_fitted,
            predictor=stored_name(model, turn.settings),
            step=step_of(turn.settings),
            panels=list(dict.fromkeys(estimate.panel for estimate in needed_here)),
            fitted_at=at,
            known_at=turn.at,
        )
        for estimate in needed_here:
            state = states.get((estimate.panel, estimate.variable))
            if state is None:
                continue
            try:
                fitted[estimate] = _restore(estimate, state.state)
            except ForecastError as error:
                turn.say(f"{model} of {estimate.panel} is estimated again at {at}: {error}")
                unreadable.append(state)
    return Estimations(needed=needed, fitted=fitted, unreadable=tuple(unreadable))


def new_estimates(turn: TurnValues, estimations: Estimations, before: Estimates) -> dict[Estimation, str]:
    """Return the required estimates that are not stored, from ``before`` or newly computed."""
    lacking = [
        estimation
        for estimation in _all_estimations(estimations.needed)
        if estimation not in estimations.fitted
    ]
    fresh = _estimate_all(turn, [key for key in lacking if key not in before])
    return {key: before[key] if key in before else fresh[key] for key in lacking}


def prepare(turn: TurnValues, estimations: Estimations, ahead: Estimates = NO_ESTIMATES) -> ForecastInput:
    """Return the input of the forecasts, with new estimates; those in ``ahead`` are not computed again."""
    result = new_estimates(turn, estimations, ahead)
    basis = _basis(
        {
            **estimations.fitted,
            **{estimation: _restore(estimation, text) for estimation, text in result.items()},
        }
    )
    return ForecastInput(
        batches={
            followed: {
                model: [
                    OriginBatch(
                        origins=origins,
                        basis={variable: basis[estimation] for variable, estimation in pair.items()},
                    )
                    for pair, origins in batches
                ]
                for model, batches in models.items()
            }
            for followed, models in estimations.needed.items()
        },
        estimates=tuple(_state(turn, estimation, text) for estimation, text in result.items()),
        unreadable=estimations.unreadable,
    )


def _basis(fitted: Mapping[Estimation, FittedPredictor]) -> dict[Estimation, Basis]:
    """Return the basis of the forecasts from each estimation; data shared by peers are computed once for all models."""
    peers: dict[tuple[str, Variable, int], tuple[Series, ...]] = {}
    basis: dict[Estimation, Basis] = {}
    for estimation, model in fitted.items():
        predictor, place = (
            make_predictor(estimation.model),
            (estimation.panel, estimation.variable, estimation.at),
        )
        if predictor.pooled and place not in peers:
            peers[place] = estimation.cohort.peers(estimation.at)
        basis[estimation] = Basis(
            predictor=estimation.model,
            at=estimation.at,
            start=estimation.cohort.start(estimation.at),
            fitted=model,
            peers=peers[place] if predictor.pooled else (),
        )
    return basis


def _needed_estimations(
    turn: TurnValues, histories: Mapping[FollowedMarket, History], missing: Missing
) -> _Needed:
    """Return by market and model the estimations for the forecasts in ``missing``, each with its origins."""
    pools = {source: _cohorts(members, turn.settings) for source, members in _by_source(histories).items()}
    names = {source: panel_name(members) for source, members in _by_source(histories).items()}
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
                        variable: Estimation(
                            model=model, panel=name, variable=variable, at=at, cohort=cohorts[variable]
                        )
                        for variable, at in zip(VARIABLES, fits, strict=True)
                    },
                    members,
                )
                for fits, members in estimations(cohorts, history, origins)
            ]
    return needed


def _all_estimations(needed: _Needed) -> list[Estimation]:
    every = (pair for models in needed.values() for pairs in models.values() for pair, _ in pairs)
    return list(dict.fromkeys(estimation for pair in every for estimation in pair.values()))


def _by_source(histories: Mapping[FollowedMarket, History]) -> dict[str, list[History]]:
    by_source: dict[str, list[History]] = {}
    for followed, history in histories.items():
        by_source.setdefault(followed.source, []).append(history)
    return by_source


def _cohorts(histories: Sequence[History], settings: Settings) -> dict[Variable, Cohort]:
    timetable = timetable_of(settings)
    return {
        variable: Cohort(
            series=tuple(series_of(history, variable) for history in histories),
            cadence=timetable.of(variable),
        )
        for variable in VARIABLES
    }


def panel_name(histories: Sequence[History]) -> str:
    """Return ``source:hash``, where the hash identifies the set of markets: another set is another panel."""
    keys = sorted((history.market.key, history.source) for history in histories)
    return f"{keys[0][1]}:{_short([f'{market}@{source}' for market, source in keys])}"


def stored_name(model: str, settings: Settings) -> str:
    """Return ``model:hash``, the name of a model's stored estimates; the hash is of the settings in `ESTIMATION_SETTINGS`."""
    values = settings.model_dump(mode="json")
    return f"{model}:{_short([values[name] for name in ESTIMATION_SETTINGS])}"


def _short(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def _restore(estimation: Estimation, text: str) -> FittedPredictor:
    make_predictor(estimation.model)  # the import registers the classes in its states
    fitted: FittedPredictor = restore_model(text)
    return fitted


def _state(turn: TurnValues, estimation: Estimation, text: str) -> FittedState:
    """Return an estimate as stored: its ``known_at`` is its slot, whenever it was computed."""
    return FittedState(
        predictor=stored_name(estimation.model, turn.settings), variable=estimation.variable, panel=estimation.panel,
        step=step_of(turn.settings), fitted_at=estimation.time, known_at=estimation.time, state=text,
    )  # fmt: skip


def _estimate_all(turn: TurnValues, required: Sequence[Estimation]) -> dict[Estimation, str]:
    """Return the required estimates as text; those on one panel share their parts and are made in a single call."""
    pooled = {estimation.model: make_predictor(estimation.model).pooled for estimation in required}
    shared: dict[tuple[str, int], list[Estimation]] = {}
    for estimation in sorted(required, key=lambda estimation: estimation.panel):
        shared.setdefault((estimation.panel if pooled[estimation.model] else "", estimation.at), []).append(
            estimation
        )
    alone = [estimation for (panel, _), group in shared.items() if not panel for estimation in group]
    alone.sort(key=lambda estimation: estimation.panel)
    parcels = [group for (panel, _), group in shared.items() if panel]
    parcels += [alone[i : i + ALONE_A_CALL] for i in range(0, len(alone), ALONE_A_CALL)]
    if not parcels:
        return {}
    turn.say(f"estimate {plural(len(required), 'model')}")
    done = turn.fan(estimate, [{"parcel": parcel} for parcel in parcels])
    return {
        estimation: text
        for parcel, result in zip(parcels, done, strict=True)
        for estimation, text in zip(parcel, result, strict=True)
    }


def estimate(parcel: Sequence[Estimation]) -> list[str]:
    """Return each estimate of a batch as text."""
    return [
        state_text(estimation.cohort.estimate(make_predictor(estimation.model), estimation.at))
        for estimation in parcel
    ]
