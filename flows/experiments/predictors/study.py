"""``slackwater experiment predictors``: choose among forecasters whose accuracy is not known beforehand (M10, M5.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flows.accuracy.error_cost import NONE, PERFECT, POLICIES, CostCase, join_note, replay_models
from flows.accuracy.units import cores
from flows.command import Answer
from flows.command.progress import progress, say
from flows.experiments.command import StudyOptions
from flows.experiments.material import read_tapes
from flows.experiments.material_scenarios import make_scenarios
from forecasting.predictors import EXPERIMENTS, FAST, predictor_names
from optimization.replay.run import spread
from optimization.selection.choosing import Spans
from optimization.selection.weights import normalised, utility_bounds
from optimization.trials.scenarios import Grid, Scenario
from warehouse.errors import SettingsError

#: The forecasters to choose from, and those of a quick look.
FORECASTERS = predictor_names(EXPERIMENTS)
FAST_FORECASTERS = predictor_names(FAST)
#: Jobs for each of the grid's cells.
JOBS_A_CELL, FAST_JOBS_A_CELL = 4, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorRounds:
    """Jobs in the order of their starts, replayed under every forecaster, without any, and under perfect forecasts.

    ``arms`` are the forecasters and `NONE`. ``raw`` (jobs, arms, policies) in units of on-demand-only cost, ``shares`` the
    same in the bounds of M5.2, ``perfect`` (jobs, policies); ``losses`` (jobs, arms): mean instances per slot forecast
    and absent or there and unpredicted, NaN for `NONE`; ``spans`` in slots since the epoch; ``markets`` the count series.
    """

    arms: tuple[str, ...]
    policies: tuple[str, ...]
    raw: np.ndarray
    shares: np.ndarray
    perfect: np.ndarray
    losses: np.ndarray
    spans: Spans
    markets: tuple[str, ...]
    synthetic: int


def predictors_study(study: StudyOptions, *, models: Sequence[str]) -> Answer:
    """Replay a folder's test jobs under every forecaster, and choose among them job after job."""
    from flows.experiments.predictors.answer import predictors_answer, predictors_blocks
    from flows.experiments.predictors.sections import predictors_page

    fast = study.fast
    names = tuple(models) or (FAST_FORECASTERS if fast else FORECASTERS)
    rounds = replay_forecasters(
        study.data, names, seed=study.seed, per_cell=FAST_JOBS_A_CELL if fast else JOBS_A_CELL
    )
    value = predictors_answer(rounds, data=str(study.data), seed=study.seed, fast=fast)
    return Answer(
        title="Choosing among forecasters",
        value=value,
        blocks=predictors_blocks(value),
        page=lambda: predictors_page(value),
    )


def replay_forecasters(
    data: Path, models: Sequence[str], *, seed: int, per_cell: int, grid: Grid | None = None
) -> PredictorRounds:
    """The test jobs of a folder under each of ``models``; the same jobs for all of them.

    Raises `SettingsError` for fewer than two models or one named twice, and what `read_tapes` and `make_scenarios` raise.
    """
    if len(models) < 2 or len(set(models)) < len(models):
        raise SettingsError(f"forecasters {', '.join(models) or 'none'}", expected="at least two, each once")
    tapes = read_tapes(data)
    for note in tapes.notes:
        say(note)
    issued: dict[str, list[Scenario]] = {}
    for name in models:
        with progress(f"forecasts of {name}") as tell:
            issued[name] = make_scenarios(
                tapes, grid=grid or Grid(), part="test", per_cell=per_cell, seed=seed, planner=name, progress=tell
            )  # fmt: skip
    jobs = issued[models[0]]
    cases = [
        CostCase(
            scenario=replace(one, forecasts=None),
            forecasts=tuple(issued[name][k].forecasts or () for name in models),
        )
        for k, one in enumerate(jobs)
    ]
    with progress("jobs") as tell:
        rows = list(spread(replay_models, cases, POLICIES, processes=cores(), progress=tell))
    return rounds_of_results(np.array(rows), jobs, models)


def rounds_of_results(
    results: np.ndarray, jobs: Sequence[Scenario], models: Sequence[str]
) -> PredictorRounds:
    """``results`` of `replay_models`, shape (jobs, models + perfect + none, policies, 5), as rounds in the order of the starts."""
    step = jobs[0].draw.counts.step
    starts = np.array([float(one.at.value // step.value) for one in jobs])
    known = starts + np.array([one.job.late_limit for one in jobs])
    order = np.argsort(starts, kind="stable")
    at = [*range(len(models)), len(models) + 1]
    raw = results[..., 0]
    bounds = [
        utility_bounds(one.job, on_demand_usd=one.window.on_demand_usd, slot_hours=one.window.slot_hours)
        for one in jobs
    ]
    shares = np.array(
        [normalised(row[at] * one.unit, two) for row, one, two in zip(raw, jobs, bounds, strict=True)]
    )
    return PredictorRounds(
        arms=(*models, NONE),
        policies=POLICIES,
        raw=raw[order][:, at],
        shares=shares[order],
        perfect=raw[order][:, len(models)],
        losses=results[order][:, at, 0, 2],
        spans=Spans(start=starts[order], known=known[order]),
        markets=tuple(jobs[int(k)].draw.counts.label for k in order),
        synthetic=sum(one.draw.synthetic for one in jobs),
    )


def notes_of(rounds: PredictorRounds) -> list[str]:
    """What to know of the jobs before believing the numbers."""
    return [
        join_note(rounds.synthetic, len(rounds.markets)),
        "Jobs are met in the order of their starts; what a job was worth is learned when it can last no longer, so that jobs that "
        "overlap in time teach nothing to each other. Jobs of one market overlap, so intervals are rather too narrow.",
        f"{PERFECT} forecasts and {NONE} (the same policy planning the present slot alone, which reads no forecast) stand beside "
        f"the forecasters; {NONE} can be chosen like one of them.",
    ]
