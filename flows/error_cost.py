"""What forecast errors cost: the same jobs and policies under every model's forecasts, perfect ones, and none (M5.5).

Jobs are those of E1's grid on the test parts of the series given (M7). A policy that plans ahead is replayed on each with the
forecasts a model issued, with perfect forecasts and with last value's; the differences in utility are what being wrong costs, and
what being better is worth. All utilities are in units of each job's on-demand-only cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from flows.error_cost_table import NONE, PERFECT, ErrorCost, summarise
from flows.experiments.scenarios import join_note
from flows.issued import Medians, add_missing, panels_of
from forecasting.forecast import Variable
from forecasting.panel import PanelModel
from forecasting.scoring import FLOOR
from forecasting.series import Series
from optimization.batch import spread
from optimization.ledger import perfect_forecasts
from optimization.market import PointForecast
from optimization.plan import Outcome
from optimization.policies.committed_horizon import Ahap
from optimization.policy import Policy
from optimization.pool import policy_named
from optimization.replay import PlanMemo, replay_pool
from optimization.scenarios import Draw, Grid, Scenario, draw_scenarios, scenario_of
from optimization.tapes import Tape, moving_paths
from warehouse.errors import MarketError, SettingsError

#: The policies that read the forecasts: the pool's five-slot plan under its default end rule, and under the target (M3.3).
POLICIES = ("AHAP(5,1,0.9)", "AHAP(5,1,0.9,target)")
#: Slots ahead that forecasts are made for (the plans of `POLICIES` read four of them).
HORIZON = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """What is replayed: ``per_cell`` jobs for each cell of the grid, on at most ``paths_per_source`` price paths of a source."""

    policies: tuple[str, ...] = POLICIES
    grid: Grid = field(default_factory=Grid)
    per_cell: int = 4
    paths_per_source: int = 3
    seed: int = 7
    processes: int = 1


def error_cost(
    series: Sequence[Series],
    models: Mapping[str, Mapping[Variable, PanelModel]],
    *,
    plan: CostPlan | None = None,
    issued: Medians | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ErrorCost:
    """Replay the plan's policies on jobs of the test parts under each model's forecasts.

    Of ``series`` the counts with a stated capacity (a bound that never moves) and the prices whose on-demand price is known are
    joined, every join about equally often; a join is synthetic unless both are one market's in one source (M7). ``models`` are as
    `forecasting.rolling.models_of` gives them, `FLOOR` among them. ``issued`` holds forecasts already made (it is not changed); the
    rest is made now, each model being estimated on all series of a source. ``progress(done, total)`` counts jobs. Raises
    `SettingsError` without `FLOOR` and `MarketError` if no job can be drawn.
    """
    plan = plan or CostPlan()
    if FLOOR not in models or {PERFECT, NONE} & set(models):
        raise SettingsError(
            f"models {', '.join(models)}", expected=f"{FLOOR} among them, and none called {PERFECT} or {NONE}"
        )
    jobs = _draw(series, plan)
    medians = issued.copy() if issued is not None else Medians()
    add_missing(
        medians,
        panels_of(series),
        jobs.wanted(),
        models,
        horizon=HORIZON,
        processes=plan.processes,
    )
    cases = [
        CostCase(
            scenario=scenario,
            forecasts=tuple(jobs.forecasts(scenario.draw, model, medians) for model in models),
        )
        for scenario in jobs.scenarios
    ]
    rows = list(spread(replay_models, cases, plan.policies, processes=plan.processes, progress=progress))
    return summarise(
        np.array(rows),
        models=tuple(models),
        policies=plan.policies,
        markets=[scenario.draw.counts.label for scenario in jobs.scenarios],
        notes=_notes(jobs, plan),
        seed=plan.seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCase:
    """A job and what each model forecast in each of its slots."""

    scenario: Scenario
    forecasts: tuple[tuple[PointForecast | None, ...], ...]


def replay_models(case: CostCase, names: tuple[str, ...]) -> np.ndarray:
    """One job under every model, perfect forecasts and none, shape (models + 2, policies, 5).

    The five: utility, on time, mean errors of the medians read (counts in instances, prices in shares of on-demand), and the
    utility with the same counts beside the true prices.
    """
    scenario, window = case.scenario, case.scenario.window
    policies = [policy_named(name) for name in names]
    blind = [replace(one, omega=1, commitment=1) if isinstance(one, Ahap) else one for one in policies]
    truth = tuple(perfect_forecasts(window, HORIZON))
    ahead = max((one.omega - 1 for one in policies if isinstance(one, Ahap)), default=HORIZON)
    memo = PlanMemo()

    def outcomes(pool: list[Policy[Any]], forecasts: Sequence[PointForecast | None]) -> list[Outcome]:
        return replay_pool(pool, scenario.job, window, forecasts=forecasts, record=scenario.record, memo=memo)

    out = []
    for forecasts in (*case.forecasts, truth):
        errors = median_errors(forecasts, truth, ahead, window.on_demand_usd)
        pairs = zip(
            outcomes(policies, forecasts), outcomes(policies, with_prices(forecasts, truth)), strict=True
        )
        out.append(
            [[_utility(a, scenario), float(a.on_time), *errors, _utility(b, scenario)] for a, b in pairs]
        )
    alone = [(_utility(o, scenario), float(o.on_time)) for o in outcomes(blind, truth)]
    out.append([[utility, on_time, np.nan, np.nan, utility] for utility, on_time in alone])
    return np.array(out)


def _utility(outcome: Outcome, scenario: Scenario) -> float:
    return outcome.utility_usd / scenario.unit


def with_prices(
    forecasts: Sequence[PointForecast | None], truth: Sequence[PointForecast]
) -> list[PointForecast | None]:
    """The same forecasts of counts beside the true prices, as far as those are known."""
    return [
        None
        if made is None
        else PointForecast(
            price=right.price[: len(made.available)], available=made.available[: len(right.price)]
        )
        for made, right in zip(forecasts, truth, strict=True)
    ]


def median_errors(
    forecasts: Sequence[PointForecast | None],
    truth: Sequence[PointForecast],
    ahead: int,
    on_demand_usd: float,
) -> tuple[float, float]:
    """Mean |forecast - truth| of counts (instances) and prices (shares of on-demand) over slots and the first ``ahead`` steps.

    A price above on-demand counts as on-demand: no plan would pay more.
    """
    count, price = [], []
    for made, right in zip(forecasts, truth, strict=True):
        if made is not None:
            k = min(len(made.price), len(right.price), ahead)
            count.append(np.abs(made.available[:k] - right.available[:k]))
            dear = [np.minimum(prices[:k], on_demand_usd) for prices in (made.price, right.price)]
            price.append(np.abs(dear[0] - dear[1]) / on_demand_usd)
    if not count or not sum(map(len, count)):
        return float("nan"), float("nan")
    return float(np.concatenate(count).mean()), float(np.concatenate(price).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Jobs:
    """The jobs drawn, and the series behind the tapes they were drawn on, by label."""

    scenarios: tuple[Scenario, ...]
    series: Mapping[tuple[Variable, str], Series]

    @property
    def paths(self) -> list[Series]:
        return [one for (variable, _), one in self.series.items() if variable == "price"]

    def wanted(self) -> dict[tuple[Variable, str], set[int]]:
        """The slots in which forecasts are read, by variable and key: those of each job but its last, after which none counts."""
        slots: dict[tuple[Variable, str], set[int]] = {}
        for scenario in self.scenarios:
            draw, ahead = scenario.draw, range(scenario.draw.cell.deadline_slots - 1)
            slots.setdefault(("count", draw.counts.label), set()).update(draw.count_start + t for t in ahead)
            slots.setdefault(("price", draw.path.label), set()).update(draw.path_start + t for t in ahead)
        return slots

    def forecasts(self, draw: Draw, model: str, medians: Medians) -> tuple[PointForecast | None, ...]:
        """What a plan reads in each slot of a job; None (the present is held) where one of the two has no forecast."""
        counts, path = self.series["count", draw.counts.label], self.series["price", draw.path.label]
        made: list[PointForecast | None] = []
        for t in range(draw.cell.deadline_slots):
            price = medians.at(model, path, draw.path_start + t)
            count = medians.at(model, counts, draw.count_start + t)
            whole = None if price is None or count is None else np.floor(count + 1e-9).astype(np.int64)
            made.append(
                None if price is None or whole is None else PointForecast(price=price, available=whole)
            )
        return tuple(made)


def _draw(series: Sequence[Series], plan: CostPlan) -> _Jobs:
    """Draw the jobs on the liveliest price paths of each source; a grid too wide for every count series shrinks to the widest."""
    counts = [one for one in series if one.variable == "count" and one.market is not None and _stated(one)]
    prices = [one for one in series if one.variable == "price" and one.market is not None]
    tapes = [tape_of(one) for one in counts]
    longest = max(plan.grid.deadlines)
    tapes = [tape for tape in tapes if tape.bound >= 1 and len(tape) - tape.half > longest]
    known = [one for one in prices if one.on_demand_usd > 0]
    paths = [tape for tape in map(tape_of, known) if len(tape) - tape.half > longest]
    if not tapes or not paths:
        raise MarketError(
            f"{len(tapes)} count series and {len(paths)} price series with an on-demand price have more than {longest} test slots",
            expected="at least one of each",
            remedy="give longer series",
        )
    widest = int(max(tape.bound for tape in tapes))
    served = tuple(n for n in plan.grid.n_maxes if n <= widest) or (widest,)
    paths = moving_paths(paths, most=plan.paths_per_source)
    draws = draw_scenarios(
        tapes, paths, grid=replace(plan.grid, n_maxes=served), part="test", per_cell=plan.per_cell,
        rng=np.random.default_rng([plan.seed, 8]),
    )  # fmt: skip
    used = {("count", draw.counts.label) for draw in draws} | {("price", draw.path.label) for draw in draws}
    return _Jobs(
        scenarios=tuple(scenario_of(draw, peers=np.empty((0, len(draw.counts)))) for draw in draws),
        series={(s.variable, s.key): s for s in [*counts, *known] if (s.variable, s.key) in used},
    )


def _stated(series: Series) -> bool:
    """Whether a count's capacity is stated: one that is only the most seen so far moves, unless it is never surpassed."""
    return bool(len(series)) and float(np.ptp(series.upper)) == 0.0


def _notes(jobs: _Jobs, plan: CostPlan) -> tuple[str, ...]:
    drawn = [scenario.draw for scenario in jobs.scenarios]
    return (
        join_note(sum(draw.synthetic for draw in drawn), len(drawn)),
        f"{len({draw.counts.label for draw in drawn})} count series, {len(jobs.paths)} price paths (at most "
        f"{plan.paths_per_source} of a source, the liveliest); jobs overlap in time, so intervals are rather too narrow",
    )


def tape_of(series: Series) -> Tape:
    """A series as a tape that jobs can be drawn on; a count is bounded by its capacity, a price by on-demand's.

    Raises `MarketError` for a series of no market.
    """
    if series.market is None:
        raise MarketError("a series of no market", expected="one that belongs to a market")
    return Tape(
        variable=series.variable,
        market=series.market,
        source=series.source,
        values=series.values,
        bound=series.on_demand_usd
        if series.variable == "price"
        else float(series.upper[-1] if len(series) else 0),
        first=pd.Timestamp(0, tz="UTC") + series.first_slot * series.step,
        step=series.step,
        real_clock=series.slots_per_day > 0,
    )
