"""Estimated forecasters of a turn: read back where the warehouse has them, made side by side where it has not (M6.4).

A forecaster that learns from several markets is estimated once per source and refit time on every followed market of the source,
any other once per market. What is made is kept with the forecasts, so between two refits a turn estimates nothing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pandas as pd

from flows.config import Settings
from flows.turn.context import Calls, Staged, Turn
from flows.turn.markets import Followed, step_of
from forecasting.forecast import Variable
from forecasting.origins.timetable import Cohort, Estimated, Timetable, is_pooled, key_of
from forecasting.predictor import Peers
from forecasting.predictors import make_predictor
from forecasting.state import restored, state_text
from warehouse.errors import ForecastError
from warehouse.history import History
from warehouse.issued.fitted import FittedState, forget_fitted, load_fitted, save_fitted
from warehouse.store.connection import Store

VARIABLES: tuple[Variable, ...] = ("price", "count")
#: Estimations of single markets that make one call: each takes a fraction of a second.
ALONE_A_CALL = 12
#: Settings that change what a forecaster is estimated on, or when: those of others are never used.
_TELLING = ("history_days", "refit_hours", "trust", "assumed_spot_share", "assumed_capacity")


def timetable_of(settings: Settings) -> Timetable:
    """The refit timetable of the settings."""
    return Timetable(
        refit_every=pd.Timedelta(hours=settings.refit_hours),
        lookback=pd.Timedelta(days=settings.history_days),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Ascending ``origins`` of one market that are forecast by one model from one estimation; ``peers`` is what it may look at."""

    estimated: Estimated
    peers: Peers
    origins: tuple[pd.Timestamp, ...]


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
    """An estimation that is needed: of ``model`` on a cohort called ``panel``, at slot ``at``."""

    model: str
    panel: str
    at: pd.Timestamp
    cohort: Cohort = field(compare=False)


#: Origins by market and model.
Missing = Mapping[Followed, Mapping[str, Sequence[pd.Timestamp]]]
#: The texts of price and count models that were estimated before they are asked for.
Estimates = Mapping[Wanted, tuple[str, str]]
NO_ESTIMATES: Estimates = MappingProxyType({})
_Needed = dict[Followed, dict[str, list[tuple[Wanted, tuple[pd.Timestamp, ...]]]]]


def prepare(
    turn: Turn,
    histories: Mapping[Followed, History],
    missing: Missing,
    ahead: Estimates = NO_ESTIMATES,
) -> Staged[Prepared]:
    """Everything that is needed to forecast the markets in ``missing``, by model at ascending origins.

    ``histories`` are those of all followed markets: markets of one source are a panel, whether they lack forecasts or not.
    Each must reach back to `Timetable.start` of every origin of its source. The estimation and the forecasts read, for an
    origin, only what was known at it. Where a stored estimation is there, it is used as it was made; else one made ``ahead``.
    """
    needed = _needed(turn, histories, missing)
    wanted = _wanted(needed)
    states, unreadable = _stored(turn, wanted)
    lacking = [one for one in wanted if one not in states]
    fresh = yield from _estimated(turn, [one for one in lacking if one not in ahead])
    made = {one: ahead[one] if one in ahead else fresh[one] for one in lacking}
    states |= {one: _restored(one, texts) for one, texts in made.items()}
    peers = {one: one.cohort.peers(one.at) for one in _one_each_time(wanted)}
    shown = {(one.panel, one.at): own for one, own in peers.items()}
    return Prepared(
        batches={
            followed: {
                model: [
                    Batch(
                        estimated=states[one], peers=shown.get((one.panel, one.at), Peers()), origins=origins
                    )
                    for one, origins in own
                ]
                for model, own in models.items()
            }
            for followed, models in needed.items()
        },
        made=[state for one, texts in made.items() for state in _states(turn, one, texts)],
        unreadable=unreadable,
    )


def estimate_ahead(
    turn: Turn, histories: Mapping[Followed, History], missing: Missing, before: Estimates
) -> Staged[dict[Wanted, tuple[str, str]]]:
    """What `prepare` will have to estimate for ``missing``, as far as it is not stored: from ``before`` or made now.

    Nothing is kept in the warehouse until forecasts are made of it.
    """
    wanted = _wanted(_needed(turn, histories, missing))
    states, _ = _stored(turn, wanted)
    lacking = [one for one in wanted if one not in states]
    fresh = yield from _estimated(turn, [one for one in lacking if one not in before])
    return {one: before[one] if one in before else fresh[one] for one in lacking}


def _needed(turn: Turn, histories: Mapping[Followed, History], missing: Missing) -> _Needed:
    """By market and model the estimations that ``missing`` is forecast from, each with its origins."""
    pools = {source: _cohort(own, turn.settings) for source, own in _by_source(histories).items()}
    needed: _Needed = {}
    for followed, models in missing.items():
        alone = _cohort([histories[followed]], turn.settings)
        for model, origins in models.items():
            together = is_pooled(make_predictor(model))
            cohort = pools[followed.source] if together else alone
            name = panel_name(cohort) if together else followed.key
            needed.setdefault(followed, {})[model] = [
                (Wanted(model=model, panel=name, at=one.at, cohort=cohort), one.origins)
                for one in cohort.estimations(origins)
            ]
    return needed


def _wanted(needed: _Needed) -> list[Wanted]:
    return list(dict.fromkeys(one for models in needed.values() for own in models.values() for one, _ in own))


def _by_source(histories: Mapping[Followed, History]) -> dict[str, list[History]]:
    found: dict[str, list[History]] = {}
    for followed, history in histories.items():
        found.setdefault(followed.source, []).append(history)
    return found


def _cohort(histories: Sequence[History], settings: Settings) -> Cohort:
    return Cohort(histories=tuple(histories), timetable=timetable_of(settings))


def panel_name(cohort: Cohort) -> str:
    """``source:hash``, the hash of which markets they are: another set of markets is another panel."""
    keys = [key_of(history) for history in cohort.ordered]
    return f"{cohort.ordered[0].source}:{_short(keys)}"


def stored_name(model: str, settings: Settings) -> str:
    """The name a model's estimations are kept under, ``model:hash``: with other settings of `_TELLING` they are others."""
    values = settings.model_dump(mode="json")
    return f"{model}:{_short([values[name] for name in _TELLING])}"


def _short(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:12]


def _one_each_time(wanted: Iterable[Wanted]) -> list[Wanted]:
    """Of estimations of panels one for each panel and slot."""
    pooled = {(one.panel, one.at): one for one in wanted if is_pooled(make_predictor(one.model))}
    return list(pooled.values())


def _stored(turn: Turn, wanted: Sequence[Wanted]) -> tuple[dict[Wanted, Estimated], list[FittedState]]:
    """The wanted estimations that are stored for both variables, and the stored ones that cannot be read any more."""
    groups: dict[tuple[str, pd.Timestamp], list[Wanted]] = {}
    for one in wanted:
        groups.setdefault((one.model, one.at), []).append(one)
    found: dict[Wanted, Estimated] = {}
    unreadable: list[FittedState] = []
    for (model, at), own in groups.items():
        kept = load_fitted(
            turn.store,
            predictor=stored_name(model, turn.settings),
            step=step_of(turn.settings),
            panels=[one.panel for one in own],
            fitted_at=at,
            known_at=turn.at,
        )
        for one in own:
            states = [kept[one.panel, variable] for variable in VARIABLES if (one.panel, variable) in kept]
            if len(states) < len(VARIABLES):
                continue
            try:
                found[one] = _restored(one, tuple(state.state for state in states))
            except ForecastError as error:
                turn.say(f"{model} of {one.panel} is estimated again at {at}: {error}")
                unreadable += states
    return found, unreadable


def _restored(wanted: Wanted, texts: Sequence[str]) -> Estimated:
    price, count = (restored(text) for text in texts)
    pooled = is_pooled(make_predictor(wanted.model))
    return Estimated(predictor=wanted.model, at=wanted.at, pooled=pooled, price=price, count=count)


def _states(turn: Turn, wanted: Wanted, texts: Sequence[str]) -> list[FittedState]:
    """An estimation as it is kept: it knew what was known at its slot, whenever it was made."""
    return [
        FittedState(
            predictor=stored_name(wanted.model, turn.settings), variable=variable, panel=wanted.panel,
            step=step_of(turn.settings), fitted_at=wanted.at, known_at=wanted.at, state=text,
        )
        for variable, text in zip(VARIABLES, texts, strict=True)
    ]  # fmt: skip


def _estimated(turn: Turn, wanted: Sequence[Wanted]) -> Staged[dict[Wanted, tuple[str, str]]]:
    """The wanted estimations made now, as text: those on one panel in one call, single markets in parcels.

    What is estimated on one panel has parts in common, which are made once (`forecasting.state`).
    """
    panels = [one for one in wanted if is_pooled(make_predictor(one.model))]
    alone = sorted((one for one in wanted if one not in panels), key=lambda one: one.panel)
    shared: dict[tuple[str, pd.Timestamp], list[Wanted]] = {}
    for one in panels:
        shared.setdefault((one.panel, one.at), []).append(one)
    parcels = list(shared.values())
    parcels += [alone[i : i + ALONE_A_CALL] for i in range(0, len(alone), ALONE_A_CALL)]
    if not parcels:
        return {}
    turn.say(f"estimate {len(panels)} panels and {len(alone)} single markets")
    results = yield Calls(
        function=estimate, calls=[{"parcel": parcel} for parcel in parcels], label="estimate"
    )
    done = results()
    return {
        one: texts
        for parcel, made in zip(parcels, done, strict=True)
        for one, texts in zip(parcel, made, strict=True)
    }


def estimate(parcel: Sequence[Wanted]) -> list[tuple[str, str]]:
    """Estimate each of a parcel; the texts of its price and of its count model."""
    made = [one.cohort.estimate(make_predictor(one.model), one.at) for one in parcel]
    return [(state_text(one.price), state_text(one.count)) for one in made]
