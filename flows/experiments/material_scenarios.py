"""Scenarios of E1 with the forecasts that would have been issued in each of their slots (M6.4, M7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.experiments.material import Tapes
from flows.turn.estimate import timetable_of
from forecasting.origins.forecasts import backtest, key_of
from forecasting.predictor import FittedPredictor, Panel, Predictor
from forecasting.predictors import FLOOR, make_predictor
from forecasting.quantiles import Variable
from optimization.market.window import PointForecast, Quantiles, of_quantiles
from optimization.trials.scenarios import Draw, Grid, Scenario, draw_scenarios, scenario_of
from optimization.trials.tapes import Part, Tape, peers_of
from warehouse.history import AVAILABLE, PRICE, ROW_KNOWN_AT, History

#: Slots ahead that forecasts are issued for: more than twice the widest window of the pool; the last one is held beyond.
HORIZON = 12


Progress = Callable[[int, int], None]


def make_scenarios(
    tapes: Tapes,
    *,
    grid: Grid,
    part: Part,
    per_cell: int,
    seed: int,
    planner: str | None = None,
    progress: Progress | None = None,
) -> list[Scenario]:
    """Draw ``per_cell`` jobs for each cell of the grid on joins of ``tapes``, each with its record and issued forecasts.

    ``planner`` names the forecaster (default: the settings'); it is estimated on the timetable of the settings and knows in a slot
    what had been observed by then, in either part. ``progress(done, total)`` counts series forecast. The same tapes, part
    and seed give the same scenarios.
    """
    settings = Settings.model_validate({})
    rng = np.random.default_rng([seed, 0 if part == "train" else 1])
    draws = draw_scenarios(tapes.counts, tapes.paths, grid=grid, part=part, per_cell=per_cell, rng=rng)
    ahead = _quantiles(draws, tapes, planner or settings.planner, settings, progress)
    peers = {tape.label: peers_of(tape, tapes.counts) for tape in tapes.counts}
    return [
        scenario_of(draw, peers=peers[draw.counts.label], forecasts=_issued(draw, ahead)) for draw in draws
    ]


def join_note(synthetic: int, jobs: int) -> str:
    """How many of the jobs are synthetic joins: said wherever they are shown (M7)."""
    return (
        f"{synthetic} of {jobs} jobs are synthetic joins: one market's counts with another's prices (M7); "
        f"the other {jobs - synthetic} are measured pairs"
    )


def _quantiles(
    draws: Sequence[Draw], tapes: Tapes, planner: str, settings: Settings, progress: Progress | None
) -> dict[str, dict[int, np.ndarray]]:
    """Forecasts of every series that the draws use, at every slot they ask for: label -> slot -> quantiles (h, 19)."""
    slots: dict[str, set[int]] = {}
    for draw in draws:
        for tape, start in ((draw.counts, draw.count_start), (draw.path, draw.path_start)):
            slots.setdefault(tape.label, set()).update(range(start, start + draw.cell.deadline_slots))
    total = sum(map(len, slots.values()))
    ahead: dict[str, dict[int, np.ndarray]] = {}
    done = 0
    for panel in panels_of((*tapes.counts, *tapes.paths)):
        asked = {tape.label: slots[tape.label] for tape in panel if tape.label in slots}

        def told(more: int) -> None:
            nonlocal done
            done += more
            if progress is not None:
                progress(done, total)

        ahead |= issued_quantiles(panel, asked, planner=planner, settings=settings, progress=told)
    return ahead


def panels_of(tapes: Sequence[Tape]) -> list[list[Tape]]:
    """The series whose forecasters learn from each other: those of one variable, source and product."""
    found: dict[tuple[str, str, str], list[Tape]] = {}
    for tape in tapes:
        found.setdefault((tape.variable, tape.source, tape.product), []).append(tape)
    return list(found.values())


def _issued(draw: Draw, ahead: dict[str, dict[int, np.ndarray]]) -> list[PointForecast]:
    """What is read in each slot of a job: the price path's forecast beside the count series' one."""
    prices, counts = ahead[draw.path.label], ahead[draw.counts.label]
    capacity = int(draw.counts.bound)
    return [
        of_quantiles(
            Quantiles(
                price=prices[draw.path_start + t], count=counts[draw.count_start + t], capacity=capacity
            )
        )
        for t in range(draw.cell.deadline_slots)
    ]


def issued_quantiles(
    panel: Sequence[Tape],
    slots: Mapping[str, Iterable[int]],
    *,
    planner: str,
    settings: Settings,
    progress: Callable[[int], None] | None = None,
) -> dict[str, dict[int, np.ndarray]]:
    """Forecasts of series of one panel at the given slots, by label: slot -> quantiles of the next `HORIZON` values, (h, 19).

    A variable is forecast by itself, the other one being held at a constant: the forecaster is estimated on the settings'
    timetable, on all of the panel if it learns from several markets, and reads nothing after a slot for it (M6.4).
    """
    if not slots:
        return {}
    histories = {tape.label: history_of(tape) for tape in panel}
    wanted = {tape.label: sorted(set(slots[tape.label])) for tape in panel if tape.label in slots}
    made = backtest(
        list(histories.values()),
        _OfOne(predictor=make_predictor(planner), variable=panel[0].variable),
        origins={
            key_of(histories[tape.label]): [tape.time(t) for t in wanted[tape.label]]
            for tape in panel
            if tape.label in wanted
        },
        horizon=HORIZON,
        timetable=timetable_of(settings),
        progress=progress,
    )
    return {
        label: {
            slot: forecast.quantiles(panel[0].variable).astype(float)
            for slot, forecast in zip(own, made[key_of(histories[label])], strict=True)
        }
        for label, own in wanted.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfOne:
    """A predictor for one variable; the other one, which is a constant, is left to last value."""

    predictor: Predictor
    variable: Variable

    @property
    def name(self) -> str:
        return self.predictor.name

    @property
    def pooled(self) -> bool:
        return self.predictor.pooled

    def fit(self, panel: Panel) -> FittedPredictor:
        return self.predictor.fit(panel) if panel.variable == self.variable else _CONSTANT.fit(panel)


_CONSTANT = make_predictor(FLOOR)


def history_of(tape: Tape) -> History:
    """A series as a history whose other variable is a constant: forecasters of one variable read it as it is."""
    index = pd.date_range(tape.first, periods=len(tape), freq=tape.step)
    constant = np.where(np.isnan(tape.values), np.nan, 1.0)
    is_price = tape.variable == "price"
    known = pd.Series(index, index=index)
    frame = pd.DataFrame(
        {
            PRICE: tape.values if is_price else constant,
            AVAILABLE: constant if is_price else tape.values,
            ROW_KNOWN_AT: known,
        }
    )
    return History(
        market=tape.market,
        step=tape.step,
        known_at=index[-1],
        frame=frame,
        on_demand_usd=tape.bound if is_price else 1.0,
        capacity=1 if is_price else int(tape.bound),
        real_clock=tape.real_clock,
        source=tape.source,
        within=tape.within,
    )
