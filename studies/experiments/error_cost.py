"""Cost of forecast errors: the same jobs and policies under every model's forecasts, perfect
forecasts, and no forecasts (M5.5).

Jobs come from the grid of experiment E1 on the test parts of the given series (M7). Planning
policies are replayed on each job with the forecasts issued by a model, with perfect forecasts and
with those of last value. The differences in utility are the cost of forecast errors and the benefit
of better forecasts. All utilities are in units of each job's on-demand-only cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.accuracy.units import Medians, add_missing, panels_of
from slackwater.flows.show.formats import plural
from slackwater.forecasting.accuracy.intervals import interval_words
from slackwater.forecasting.origins import TIMETABLE, Timetable
from slackwater.forecasting.predictor import Predictor
from slackwater.forecasting.predictors import FLOOR
from slackwater.forecasting.quantiles import Variable
from slackwater.forecasting.series import Series
from slackwater.optimization.market.window import PointForecast, whole_counts
from slackwater.optimization.policies.committed_horizon import Ahap
from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import PlanMemo, replay_pool, spread
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.optimization.window.plan import Outcome
from slackwater.studies.trials.comparison import resampled
from slackwater.studies.trials.scenarios import (
    Draw,
    Grid,
    Scenario,
    Tape,
    blocks_of,
    draw_scenarios,
    moving_paths,
    scenario_of,
)
from slackwater.warehouse.errors import MarketError, SettingsError

#: Policies that use forecasts: the five-slot plan of the pool with its default end rule, and with
#: the target rule (M3.3).
POLICIES = ("AHAP(5,1,0.9)", "AHAP(5,1,0.9,target)")
#: Forecast horizon in slots (the plans of `POLICIES` use four).
HORIZON = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPlan:
    """Replay settings: ``per_cell`` jobs per cell of the grid, on at most ``paths_per_source`` price paths per source."""

    policies: tuple[str, ...] = POLICIES
    grid: Grid = field(default_factory=Grid)
    per_cell: int = 4
    paths_per_source: int = 3
    seed: int = 7
    processes: int = 1


def error_cost(
    series: Sequence[Series],
    models: Mapping[str, Predictor],
    *,
    timetable: Timetable = TIMETABLE,
    plan: CostPlan | None = None,
    issued: Medians | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ErrorCost:
    """Replay the plan's policies on jobs of the test parts under each model's forecasts.

    Count series with a stated capacity (constant upper bound) are paired with price series of known
    on-demand price, every pair about equally often. A pairing is synthetic unless both series
    belong to the same market and source (M7). ``models`` maps names to predictors, including
    `FLOOR`, estimated by ``timetable``. ``issued`` holds existing forecasts (unchanged); missing
    forecasts are computed. ``progress(done, total)`` counts jobs.

    Raises `SettingsError` without `FLOOR` or for a model named `PERFECT` or `NONE`, and
    `MarketError` if no job can be drawn.
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
        timetable=timetable,
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
        blocks=blocks_of(jobs.scenarios),
        notes=_notes(jobs, plan),
        seed=plan.seed,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostCase:
    """A job with each model's forecasts in each of its slots."""

    scenario: Scenario
    forecasts: tuple[tuple[PointForecast | None, ...], ...]


def replay_models(case: CostCase, names: tuple[str, ...]) -> np.ndarray:
    """Replay a job under every model, perfect forecasts and no forecasts; return shape (models + 2, policies, 5).

    The five values: utility, on time, mean errors of the medians used (counts in instances, prices
    as shares of on-demand), and the utility with the same counts and the true prices.
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
    """Return the forecasts with the true prices instead of the predicted prices, as far as known."""
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
    """Return mean |forecast - truth| of counts (instances) and prices (shares of on-demand) over
    slots and the first ``ahead`` steps.

    A price above on-demand counts as on-demand, since no plan would pay more.
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
    """The jobs drawn, and the series behind their traces, by variable and label."""

    scenarios: tuple[Scenario, ...]
    series: Mapping[tuple[Variable, str], Series]

    @property
    def paths(self) -> list[Series]:
        return [one for (variable, _), one in self.series.items() if variable == "price"]

    def wanted(self) -> dict[tuple[Variable, str], set[int]]:
        """Return the slots in which forecasts are used, by variable and key: all slots of each job except the last."""
        slots: dict[tuple[Variable, str], set[int]] = {}
        for scenario in self.scenarios:
            draw, ahead = scenario.draw, range(scenario.draw.cell.deadline_slots - 1)
            slots.setdefault(("count", draw.counts.label), set()).update(draw.count_start + t for t in ahead)
            slots.setdefault(("price", draw.path.label), set()).update(draw.path_start + t for t in ahead)
        return slots

    def forecasts(self, draw: Draw, model: str, medians: Medians) -> tuple[PointForecast | None, ...]:
        """Return the forecast in each slot of a job; None if price or count has no forecast."""
        counts, path = self.series["count", draw.counts.label], self.series["price", draw.path.label]
        made: list[PointForecast | None] = []
        for t in range(draw.cell.deadline_slots):
            price = medians.at(model, path, draw.path_start + t)
            count = medians.at(model, counts, draw.count_start + t)
            made.append(
                None
                if price is None or count is None
                else PointForecast(price=price, available=whole_counts(count))
            )
        return tuple(made)


def _draw(series: Sequence[Series], plan: CostPlan) -> _Jobs:
    """Draw the jobs on the price paths of each source that change most often.

    Values of N_max above the largest capacity are dropped; if all are, the largest capacity is used.
    """
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
    """Return whether a count series has a stated, and thus constant, capacity; otherwise its bound
    is the maximum observed so far.
    """
    return bool(len(series)) and float(np.ptp(series.upper)) == 0.0


def _notes(jobs: _Jobs, plan: CostPlan) -> tuple[str, ...]:
    drawn = [scenario.draw for scenario in jobs.scenarios]
    return (
        join_note(sum(draw.synthetic for draw in drawn), len(drawn)),
        f"{len({draw.counts.label for draw in drawn})} count series, {len(jobs.paths)} price paths (at most "
        f"{plan.paths_per_source} of a source, the liveliest); intervals draw jobs of one market "
        "and day, which share slots, together",
    )


def tape_of(series: Series) -> Tape:
    """Return a series as a trace for jobs; a count is bounded by its capacity, a price by the on-demand price.

    Raises `MarketError` for a series without a market.
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


#: Rows that are not models: perfect forecasts, and a plan for the current slot only, which uses no
#: forecasts.
PERFECT, NONE = "perfect", "none"
#: Value of ``policy`` in rows of means over all policies.
ALL_POLICIES = "all"
COST_COLUMNS = (
    "policy", "model", "jobs", "blocks", "mean_utility", "lost", "lost_low", "lost_high", "gained", "gained_low", "gained_high",
    "captured", "lost_to_counts", "on_time_share", "count_mae", "price_mae", "money_rank", "count_rank",
)  # fmt: skip
MARKET_COLUMNS = ("model", "market", "jobs", "lost", "gained", "count_mae")
RANK_COLUMNS = (
    "model", "mean_utility", "lost", "gained", "money_rank", "count_skill", "count_skill_rank", "price_skill", "price_skill_rank",
)  # fmt: skip
#: If perfect forecasts gain less than this over last value (in on-demand-only costs), ``captured``
#: is undefined.
_NOTHING = 1e-6


def join_note(synthetic: int, jobs: int) -> str:
    """Return a note on the number of jobs with synthetic pairings, to be shown with all results of these jobs (M7)."""
    return (
        f"{synthetic} of {jobs} jobs are synthetic joins: one market's counts with another's prices (M7); "
        f"the other {jobs - synthetic} are measured pairs"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Spearman rank correlation of accuracy and utility: 1 if more accurate models always earn more.

    ``models`` is computed over the models' means (mean error of the medians used and mean utility),
    with a 95 % interval over blocks of jobs. ``within`` is computed over models in each market,
    both less the market's mean, from ``pairs`` of model and market. NaN if nothing can be ranked.
    """

    models: float
    low: float
    high: float
    within: float
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCost:
    """Cost of forecast errors, with utilities in units of each job's on-demand-only cost.

    ``table`` (`COST_COLUMNS`): a row per policy (and `ALL_POLICIES`, their mean) and model,
    including `PERFECT` and `NONE`. ``lost`` is the utility with perfect forecasts minus that of the
    model, ``gained`` the utility of the model minus that of last value, both means over jobs with a
    95 % interval (paired bootstrap over blocks of market and day). ``captured`` is gained /
    (perfect - last value), NaN if perfect forecasts gain nothing. ``lost_to_counts`` is the loss
    with the model's counts and the true prices; the rest of ``lost`` is due to prices.
    ``on_time_share`` counts jobs finished by d. ``count_mae`` (instances) and ``price_mae`` (share
    of the on-demand price, which caps prices) are mean errors of the medians used by these plans.
    ``money_rank`` ranks the models by utility, ``count_rank`` by ``count_mae``, 1 is best (NaN for
    `PERFECT` and `NONE`).

    ``by_market`` (`MARKET_COLUMNS`): means over all policies by model and count series. ``utility``
    has shape (jobs, models, policies) in the order of ``models`` (with `PERFECT` and `NONE` last)
    and ``policies``. ``notes`` describes the jobs.
    """

    table: pd.DataFrame
    by_market: pd.DataFrame
    agreement: Agreement
    utility: np.ndarray
    models: tuple[str, ...]
    policies: tuple[str, ...]
    notes: tuple[str, ...]


def summarise(
    results: np.ndarray,
    *,
    models: tuple[str, ...],
    policies: tuple[str, ...],
    markets: Sequence[str],
    blocks: np.ndarray,
    notes: tuple[str, ...],
    seed: int,
) -> ErrorCost:
    """Return the tables of ``results`` (jobs, models + perfect + none, policies, 5).

    The five values: utility, on time, count error, price error, utility with the true prices.
    ``blocks`` (jobs,) are those of `resampled`.
    """
    named = (*models, PERFECT, NONE)
    utility = results[..., 0]
    rng = np.random.default_rng([seed, 9])
    rows: list[dict[str, Any]] = []
    for p, policy in enumerate((*policies, ALL_POLICIES)):
        own = results.mean(axis=2) if policy == ALL_POLICIES else results[:, :, p]
        rows += [{"policy": policy, **row} for row in _rows(own, named, blocks, rng)]
    table = pd.DataFrame(rows, columns=list(COST_COLUMNS))
    return ErrorCost(
        table=table,
        by_market=_by_market(results.mean(axis=2), named, markets),
        agreement=_agreement(results.mean(axis=2)[:, : len(models)], markets, blocks, rng),
        utility=utility,
        models=named,
        policies=policies,
        notes=notes,
    )


def _rows(
    results: np.ndarray, named: tuple[str, ...], blocks: np.ndarray, rng: np.random.Generator
) -> list[dict[str, Any]]:
    """Return a row per model of ``results`` (jobs, models, 5)."""
    utility = results[..., 0]
    perfect, floor = utility[:, [named.index(PERFECT)]], utility[:, [named.index(FLOOR)]]
    differences = np.hstack([perfect - utility, utility - floor])
    low, high = resampled(differences, blocks=blocks, rng=rng).interval()
    mean, k = results.mean(axis=0), len(named)
    span = float((perfect - floor).mean())
    table = pd.DataFrame(
        {
            "model": named,
            "jobs": len(utility),
            "blocks": len(set(blocks)),
            "mean_utility": mean[:, 0],
            "lost": differences[:, :k].mean(axis=0),
            "lost_low": low[:k],
            "lost_high": high[:k],
            "gained": differences[:, k:].mean(axis=0),
            "gained_low": low[k:],
            "gained_high": high[k:],
            "on_time_share": mean[:, 1],
            "lost_to_counts": (perfect - results[..., 4]).mean(axis=0),
            "count_mae": _mean_known(results[..., 2]),
            "price_mae": _mean_known(results[..., 3]),
        }
    )
    table["captured"] = table["gained"] / span if span > _NOTHING else np.nan
    real = ~table["model"].isin([PERFECT, NONE])
    table["money_rank"] = (-table["mean_utility"]).where(real).rank()
    table["count_rank"] = table["count_mae"].where(real).rank()
    return [{str(key): value for key, value in row.items()} for row in table.to_dict("records")]


def _mean_known(values: np.ndarray) -> np.ndarray:
    """Return the mean over jobs without NaN, shape (models,); NaN for a model without any value."""
    seen = ~np.isnan(values)
    jobs = seen.sum(axis=0)
    return np.where(jobs > 0, np.where(seen, values, 0.0).sum(axis=0) / np.maximum(jobs, 1), np.nan)


def _by_market(results: np.ndarray, named: tuple[str, ...], markets: Sequence[str]) -> pd.DataFrame:
    utility = results[..., 0]
    perfect, floor = utility[:, [named.index(PERFECT)]], utility[:, [named.index(FLOOR)]]
    jobs, width = utility.shape
    long = pd.DataFrame(
        {
            "model": np.tile(np.array(named, dtype=object), jobs),
            "market": np.repeat(np.array(markets, dtype=object), width),
            "lost": (perfect - utility).ravel(),
            "gained": (utility - floor).ravel(),
            "count_mae": results[..., 2].ravel(),
        }
    )
    grouped = long.groupby(["model", "market"], sort=True)
    table = grouped.mean().assign(jobs=grouped.size()).reset_index()
    order = {name: i for i, name in enumerate(named)}
    table = table.sort_values(["market", "model"], key=lambda c: c.map(order) if c.name == "model" else c)
    return table[list(MARKET_COLUMNS)].reset_index(drop=True)


def _agreement(
    results: np.ndarray, markets: Sequence[str], blocks: np.ndarray, rng: np.random.Generator
) -> Agreement:
    """Return the correlation of accuracy and utility in ``results`` (jobs, models, 5), with models only."""
    utility, error = results[..., 0], results[..., 2]
    whole = np.isfinite(error).all(axis=1)
    utility, error = utility[whole], error[whole]
    names = np.array(markets, dtype=object)[whole]
    if not len(utility):
        return Agreement(models=np.nan, low=np.nan, high=np.nan, within=np.nan, pairs=0)
    k = utility.shape[1]
    drawn = resampled(np.hstack([utility, -error]), blocks=blocks[whole], rng=rng, repeats=500)
    low, high = drawn.interval(np.array([[spearman(row[:k], row[k:])] for row in drawn.means]))
    each = [
        (utility[names == name].mean(axis=0), -error[names == name].mean(axis=0)) for name in np.unique(names)
    ]
    money, accuracy = (np.concatenate([pair[i] - pair[i].mean() for pair in each]) for i in (0, 1))
    return Agreement(
        models=spearman(utility.mean(axis=0), -error.mean(axis=0)),
        low=float(low[0]),
        high=float(high[0]),
        within=spearman(money, accuracy),
        pairs=money.size,
    )


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """Return Spearman's rank correlation, with mean ranks for ties; NaN for fewer than three pairs or constant values.

    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 30.0, 20.0]))
    0.5
    """
    first, second = (pd.Series(np.round(x, 12)).rank().to_numpy() for x in (a, b))
    if len(first) < 3 or np.ptp(first) == 0 or np.ptp(second) == 0:
        return float("nan")
    first, second = first - first.mean(), second - second.mean()
    return float(first @ second / np.sqrt((first @ first) * (second @ second)))


def money_beside_accuracy(cost: ErrorCost, pooled: pd.DataFrame, *, steps: int = 4) -> pd.DataFrame:
    """Return `RANK_COLUMNS`: the models ranked by utility (`ALL_POLICIES`), with their pooled
    pinball skill of counts and prices.

    ``pooled`` is the table of `slackwater.forecasting.accuracy.tables.Accuracy`; skills are means over the
    first ``steps``, the horizon of the plans. The skill of a model without scores is NaN.
    """
    money = cost.table[(cost.table["policy"] == ALL_POLICIES) & cost.table["money_rank"].notna()]
    table = money[["model", "mean_utility", "lost", "gained", "money_rank"]].copy()
    for variable in ("count", "price"):
        near = pooled[(pooled["variable"] == variable) & (pooled["step"] <= steps)]
        skill = table["model"].map(near.groupby("model")["skill_pinball"].mean())
        table[f"{variable}_skill"] = skill
        table[f"{variable}_skill_rank"] = (-skill).rank()
    return table.sort_values("money_rank", kind="stable")[list(RANK_COLUMNS)].reset_index(drop=True)


def skill_within_markets(cost: ErrorCost, scores: pd.DataFrame, *, steps: int = 4) -> tuple[float, int]:
    """Return the rank correlation of pinball skill and utility over models within markets, and the number of pairs.

    Both values are taken less the market's mean. ``scores`` is the table of
    `slackwater.forecasting.accuracy.tables.Accuracy`; a market's skill of counts is the mean over the first
    ``steps``. The correlation is NaN if nothing can be ranked.
    """
    near = scores[(scores["variable"] == "count") & (scores["step"] <= steps)]
    skill = near.groupby(["model", "market"])["skill_pinball"].mean().rename("skill").reset_index()
    both = cost.by_market.merge(skill, on=["model", "market"]).dropna(subset=["skill", "gained"])
    apart = both[["skill", "gained"]] - both.groupby("market")[["skill", "gained"]].transform("mean")
    return spearman(apart["skill"].to_numpy(), apart["gained"].to_numpy()), len(both)


def cost_sentences(cost: ErrorCost) -> list[str]:
    """Summarise in sentences: cost of errors, best model, benefit of forecasts for each policy, and
    agreement of accuracy and utility.
    """
    table = cost.table[cost.table["policy"] == ALL_POLICIES]
    rows = {str(row["model"]): row for row in table.to_dict("records")}
    floor = rows[FLOOR]
    best = min(
        (row for row in rows.values() if row["money_rank"] > 0), key=lambda row: float(row["money_rank"])
    )
    lines = [
        f"Perfect forecasts would be worth {100 * floor['lost']:.2f} % of a job's on-demand-only cost over last value's "
        f"({_interval(floor, 'lost')}), on {floor['jobs']} jobs in {plural(int(floor['blocks']), 'block')} of market and day.",
        _best_sentence(best),
    ]
    lines += [_blind_sentence(cost.table, policy) for policy in cost.policies]
    rho = cost.agreement
    if not np.isnan(rho.models):
        lines.append(
            f"Does accuracy predict money? Rank correlation over models {rho.models:.2f} ({rho.low:.2f} to {rho.high:.2f}), "
            f"over models within markets {rho.within:.2f} ({rho.pairs} pairs)."
        )
    return lines


def _best_sentence(best: dict[Any, Any]) -> str:
    if best["model"] == FLOOR:
        return "No model makes more of it than last value."
    text = (
        f"{best['model']} makes most of it: {_percent(best['gained'])} over last value "
        f"({_interval(best, 'gained')})"
    )
    return text + (
        "." if np.isnan(best["captured"]) else f"; {100 * best['captured']:.0f} % of what could be gained."
    )


def _blind_sentence(table: pd.DataFrame, policy: str) -> str:
    """State which models make a policy worse than planning the current slot alone, since poor forecasts can cost more than none."""
    own = table[table["policy"] == policy]
    utility = dict(zip(own["model"], own["mean_utility"], strict=True))
    none = float(utility[NONE])
    worse = [str(name) for name in own.loc[own["money_rank"].notna(), "model"] if utility[name] < none]
    verdict = f"worse than that: {', '.join(worse)}" if worse else "every model is worth more than that"
    return f"{policy}: planning the present slot alone, which reads no forecast, gives {none:.4f}; {verdict}."


def _interval(row: Mapping[Any, Any], name: str) -> str:
    """Return the 95 % interval of a model's loss or gain, in per cent of the cost of on-demand only."""
    return f"95 %: {interval_words(100 * row[f'{name}_low'], 100 * row[f'{name}_high'], '+.2f')}"


def _percent(value: float) -> str:
    return f"{100 * value:+.2f} %"
