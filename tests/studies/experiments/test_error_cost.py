"""Cost of forecast errors: identical jobs under every model, known results at both extremes, consistent tables (M5.5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tidy_folder import write_tidy

from slackwater.flows.accuracy.units import Medians, add_missing, panels_of
from slackwater.forecasting.origins import TIMETABLE
from slackwater.forecasting.predictor import Outlook, each_alone
from slackwater.forecasting.predictors import make_predictor
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import series_of
from slackwater.optimization.market.window import PointForecast
from slackwater.studies.experiments.error_cost import (
    ALL_POLICIES,
    COST_COLUMNS,
    MARKET_COLUMNS,
    NONE,
    PERFECT,
    RANK_COLUMNS,
    CostPlan,
    cost_sentences,
    error_cost,
    median_errors,
    money_beside_accuracy,
    skill_within_markets,
    spearman,
    summarise,
    tape_of,
    with_prices,
)
from slackwater.studies.experiments.material import history_of, read_tapes
from slackwater.studies.trials.scenarios import Grid
from slackwater.warehouse.errors import MarketError, SettingsError

GRID = Grid(deadlines=(8,), loads=(0.5, 0.7), mu_ups=(0.9,), n_maxes=(4, 8))
PLAN = CostPlan(grid=GRID, per_cell=3, seed=1)


class Oracle:
    """Model that reads the whole series, so that the expected result is known; ``wrong`` is added to its forecasts."""

    def __init__(self, table, wrong=0.0):
        self.table, self.wrong = table, wrong

    def fit(self, series):
        return self

    def outlook(self, series, origins, horizon):
        whole = self.table[series.variable, series.key]
        at = np.minimum(origins[:, None] + np.arange(1, horizon + 1), len(whole) - 1)
        values = np.nan_to_num(whole[at]) + self.wrong
        return Outlook(
            quantiles=np.repeat(values[:, :, None], LEVELS.size, axis=2),
            mean=values,
            reasons=("",) * len(origins),
        )


@pytest.fixture(scope="module")
def series(tmp_path_factory):
    tapes = read_tapes(write_tidy(tmp_path_factory.mktemp("tidy")))
    counts = [series_of(history_of(tape), "count") for tape in tapes.counts]
    prices = [series_of(history_of(tape), "price") for tape in tapes.paths]
    return [*counts, *prices]


@pytest.fixture(scope="module")
def models(series):
    table = {(one.variable, one.key): one.values for one in series}
    oracle = each_alone("oracle", price=Oracle(table), count=Oracle(table))
    nothing = each_alone("nothing", price=Oracle(table), count=Oracle(table, wrong=-99.0))
    return {
        "last_value": make_predictor("last_value"),
        "oracle": oracle,
        "nothing": nothing,
        "markov": make_predictor("markov"),
    }


@pytest.fixture(scope="module")
def cost(series, models):
    return error_cost(series, models, plan=PLAN)


def test_an_oracle_loses_nothing(cost):
    own = cost.table[cost.table["model"] == "oracle"]
    np.testing.assert_allclose(own["lost"], 0.0, atol=1e-9)
    np.testing.assert_allclose(own["count_mae"], 0.0, atol=1e-9)
    np.testing.assert_allclose(own["lost_to_counts"], 0.0, atol=1e-9)
    oracle, perfect = cost.models.index("oracle"), cost.models.index(PERFECT)
    np.testing.assert_allclose(cost.utility[:, oracle], cost.utility[:, perfect], atol=1e-9)


def test_the_columns_add_up(cost):
    assert tuple(cost.table.columns) == COST_COLUMNS
    for policy, table in cost.table.groupby("policy"):
        mean = table.set_index("model")["mean_utility"]
        np.testing.assert_allclose(table["lost"], mean[PERFECT] - table["mean_utility"], atol=1e-12)
        np.testing.assert_allclose(table["gained"], table["mean_utility"] - mean["last_value"], atol=1e-12)
        assert (table["lost_low"] <= table["lost"] + 1e-12).all()
        assert (table["gained_high"] >= table["gained"] - 1e-12).all()
        assert table["on_time_share"].between(0, 1).all()
        if policy != ALL_POLICIES:
            p = cost.policies.index(policy)
            np.testing.assert_allclose(mean[list(cost.models)], cost.utility[:, :, p].mean(axis=0))
    whole = cost.table[cost.table["policy"] == ALL_POLICIES].set_index("model")
    np.testing.assert_allclose(whole.loc[list(cost.models), "mean_utility"], cost.utility.mean(axis=(0, 2)))
    assert whole.loc["last_value", "captured"] == 0.0
    assert whole.loc[[PERFECT, NONE], "money_rank"].isna().all()


def test_wrong_counts_cost_money_and_the_ranks_say_so(cost):
    whole = cost.table[cost.table["policy"] == ALL_POLICIES].set_index("model")
    assert whole.loc["nothing", "lost"] > 0.005
    assert whole.loc["nothing", "lost_to_counts"] == pytest.approx(whole.loc["nothing", "lost"], abs=1e-9)
    assert whole.loc["oracle", "money_rank"] == 1
    assert whole.loc["oracle", "count_rank"] == 1
    assert whole.loc["nothing", "count_rank"] == 4


def test_by_market_is_the_same_money(cost):
    assert tuple(cost.by_market.columns) == MARKET_COLUMNS
    own = cost.by_market[cost.by_market["model"] == "markov"]
    whole = cost.table[(cost.table["policy"] == ALL_POLICIES) & (cost.table["model"] == "markov")].iloc[0]
    assert np.average(own["lost"], weights=own["jobs"]) == pytest.approx(whole["lost"])
    assert own["jobs"].sum() == len(cost.utility)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_same_again_and_over_processes(series, models, cost, processes):
    few = {name: models[name] for name in ("last_value", "markov")}
    alone = error_cost(series, few, plan=replace(PLAN, processes=processes))
    places = [cost.models.index(name) for name in alone.models]
    np.testing.assert_array_equal(alone.utility, cost.utility[:, places])


def test_stored_forecasts_are_used_as_they_are(series, models, cost):
    few = {name: models[name] for name in ("last_value",)}
    stored = Medians()
    everything = {(s.variable, s.key): range(len(s) // 2, len(s)) for s in series}
    add_missing(stored, panels_of(series), everything, few, timetable=TIMETABLE, horizon=12)
    before = stored.copy()
    again = error_cost(series, few, plan=PLAN, issued=stored)
    np.testing.assert_array_equal(again.utility[:, 0], cost.utility[:, cost.models.index("last_value")])
    assert {k: len(v) for k, v in stored.table.items()} == {k: len(v) for k, v in before.table.items()}
    worthless = Medians(
        table={key: {t: m * 0.0 for t, m in own.items()} for key, own in stored.table.items()}
    )
    changed = error_cost(series, few, plan=PLAN, issued=worthless)
    assert not np.array_equal(changed.utility[:, 0], again.utility[:, 0])


def test_forecasts_read_nothing_later(series):
    counts = [one for one in series if one.variable == "count"]
    own = {"markov": make_predictor("markov")}
    slot = len(counts[0]) * 3 // 4
    wanted = {("count", counts[0].key): [slot]}
    made, other = Medians(), Medians()
    add_missing(made, panels_of(counts), wanted, own, timetable=TIMETABLE, horizon=6)
    scrambled = [replace(one, values=np.where(np.arange(len(one)) > slot, 0.0, one.values)) for one in counts]
    add_missing(other, panels_of(scrambled), wanted, own, timetable=TIMETABLE, horizon=6)
    np.testing.assert_array_equal(made.at("markov", counts[0], slot), other.at("markov", counts[0], slot))
    assert made.at("markov", counts[0], slot - 1) is None


def test_a_grid_too_wide_shrinks_to_what_is_there(series, models):
    small = [one for one in series if one.variable == "price" or one.upper[-1] == 4]
    found = error_cost(
        small,
        {"last_value": models["last_value"]},
        plan=replace(PLAN, grid=replace(GRID, n_maxes=(8, 16))),
    )
    assert set(found.by_market["market"]) == {one.key for one in small if one.variable == "count"}


def test_bad_input_says_what_is_missing(series, models):
    with pytest.raises(SettingsError, match="last_value among them"):
        error_cost(series, {"markov": models["markov"]}, plan=PLAN)
    with pytest.raises(MarketError, match="0 price series"):
        error_cost([replace(one, on_demand_usd=np.nan) for one in series], models, plan=PLAN)
    with pytest.raises(MarketError, match="no market"):
        tape_of(replace(series[0], market=None))


def test_tapes_of_series_are_the_tapes(series, tmp_path):
    tapes = read_tapes(write_tidy(tmp_path))
    for tape, one in zip(tapes.counts, series, strict=False):
        made = tape_of(one)
        assert (made.label, made.bound, made.first, made.step, made.half) == (
            tape.label, tape.bound, tape.first, tape.step, tape.half,
        )  # fmt: skip
        np.testing.assert_array_equal(made.values, tape.values)
        assert one.within.shape == (len(one), 2)


def test_median_errors_are_those_of_the_steps_read():
    truth = [PointForecast(price=np.array([1.0, 2.0, 5.0]), available=np.array([4, 4, 0]))]
    made = [PointForecast(price=np.array([1.5, 2.0, 1.0]), available=np.array([2, 5, 9]))]
    assert median_errors(made, truth, 2, 2.0) == (pytest.approx(1.5), pytest.approx(0.125))
    # A spot price above the on-demand price counts as the on-demand price.
    assert median_errors(made, truth, 3, 2.0)[1] == pytest.approx((0.25 + 0.0 + 0.5) / 3)
    assert np.isnan(median_errors([None], truth, 2, 2.0)).all()
    mixed = with_prices(made, truth)[0]
    np.testing.assert_array_equal(mixed.price, truth[0].price)
    np.testing.assert_array_equal(mixed.available, made[0].available)


def test_a_weak_result_is_said_plainly(cost):
    table = cost.table.assign(
        money_rank=np.where(cost.table["model"] == "last_value", 0.5, cost.table["money_rank"])
    )
    assert "No model makes more of it than last value." in cost_sentences(replace(cost, table=table))
    unsure = cost.table.assign(gained_low=-1.0, gained_high=1.0)
    assert any("-100.00 to +100.00: even" in line for line in cost_sentences(replace(cost, table=unsure)))
    few = cost.table.assign(gained_low=np.nan, gained_high=np.nan)
    assert any("too few blocks" in line for line in cost_sentences(replace(cost, table=few)))


def test_spearman_against_the_obvious_one():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 6, 20).astype(float), rng.normal(size=20)
    ranks = [np.array([(x > v).sum() + ((x == v).sum() + 1) / 2 for x in v]) for v in (a, b)]
    assert spearman(a, b) == pytest.approx(np.corrcoef(*ranks)[0, 1])
    assert np.isnan(spearman(np.ones(5), np.arange(5.0)))
    assert np.isnan(spearman(np.arange(2.0), np.arange(2.0)))


def test_agreement_is_one_when_money_follows_accuracy():
    rng = np.random.default_rng(1)
    error = np.array([3.0, 2.0, 1.0]) + rng.random((40, 1))
    results = np.zeros((40, 5, 1, 5))
    results[:, :3, 0, 0] = 1.0 - 0.1 * error
    results[:, :3, 0, 2] = error
    results[:, 3, 0, 0], results[:, 4, 0, 2:4] = 1.0, np.nan
    found = summarise(
        results, models=("last_value", "a", "b"), policies=("p",), markets=["x", "y"] * 20, blocks=np.arange(40),
        notes=(), seed=0,
    )  # fmt: skip
    rho = found.agreement
    assert (rho.models, rho.low, rho.high) == (1.0, 1.0, 1.0)
    assert rho.within == pytest.approx(1.0)
    assert rho.pairs == 6


def test_money_beside_accuracy_and_the_sentences(cost):
    pooled = pd.DataFrame(
        {
            "variable": ["count", "count", "count", "price"],
            "model": ["oracle", "oracle", "markov", "markov"],
            "step": [1, 9, 2, 1],
            "skill_pinball": [0.9, -5.0, 0.2, 0.1],
        }
    )
    table = money_beside_accuracy(cost, pooled)
    assert tuple(table.columns) == RANK_COLUMNS
    assert table["money_rank"].is_monotonic_increasing
    by = table.set_index("model")
    assert by.loc["oracle", ["count_skill", "count_skill_rank"]].tolist() == [0.9, 1.0]
    assert by.loc["markov", "price_skill_rank"] == 1.0
    assert np.isnan(by.loc["last_value", "count_skill"])
    scores = cost.by_market.assign(variable="count", step=1, skill_pinball=cost.by_market["gained"])
    assert skill_within_markets(cost, scores) == (pytest.approx(1.0), len(cost.by_market))
    assert np.isnan(skill_within_markets(cost, scores.iloc[:0])[0])
    text = " ".join(cost_sentences(cost))
    assert "oracle makes most of it" in text
    assert "100 % of what could be gained" in text
    assert text.count("planning the present slot alone") == 2
    assert any("synthetic joins" in note for note in cost.notes)
