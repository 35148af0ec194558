"""Price models over panels: exact persistence, no look-ahead, one pass equal to many, and skill where prices are predictable."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from make import MARKET, make_history
from series_kit import wandering

from slackwater.forecasting.predictor import Outlook, Panel, bound_quantiles, restore_model, state_text
from slackwater.forecasting.predictors.combined import (
    PARTS,
    PRICE_MEMBERS,
    SCORED_STEPS,
    AdaptiveLastValue,
    CombinedPrice,
    FittedCombinedPrice,
    PastLosses,
    empty_record,
    mixed_quantiles,
    part_losses,
    records,
    weighted_quantiles,
)
from slackwater.forecasting.predictors.last_value import LastValue
from slackwater.forecasting.predictors.lightgbm import (
    BoostedPrice,
    FittedBoostedPrice,
    distribution_quantiles,
)
from slackwater.forecasting.predictors.price_changes import (
    STATE_COLUMNS,
    ChangeProcess,
    FittedChangeProcess,
    price_rows,
    price_state,
)
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series, series_of

MODELS = {
    "adaptive": (AdaptiveLastValue, AdaptiveLastValue),
    "changes": (ChangeProcess, FittedChangeProcess),
    "lightgbm": (BoostedPrice, FittedBoostedPrice),
    "combined": (CombinedPrice, FittedCombinedPrice),
}
H = 12


def market_of(prices, zone="a", start=0) -> Series:
    """Return a series of prices in a separate zone, beginning some slots later."""
    made = series_of(make_history(prices, np.ones(len(prices)), capacity=1), "price")
    market = replace(MARKET, zone=f"us-east-1{zone}")
    return replace(made, market=market, first_slot=made.first_slot + start)


def set_anew(slots, *, seed, same=0.9) -> np.ndarray:
    """Return a price reset every 9 to 15 slots that mostly continues in its direction."""
    rng = np.random.default_rng(seed)
    level, way, out, slot = 0.0, 1.0, np.empty(slots), 0
    while slot < slots:
        width = int(rng.integers(9, 16))
        out[slot : slot + width] = np.exp(level)
        way *= 1.0 if rng.random() < same else -1.0
        level = float(np.clip(level + way * 0.01 * rng.lognormal(0, 0.5), -0.5, 0.8))
        slot += width
    return out


@pytest.fixture(scope="module")
def panel() -> Panel:
    """Return four markets: two reset every few hours, one flat, one that begins to move in its middle."""
    late = np.concatenate([np.full(600, 0.918), 0.918 * set_anew(600, seed=3)])
    return Panel(
        series=(
            market_of(set_anew(1200, seed=1), "a"),
            market_of(set_anew(1200, seed=2), "b"),
            market_of(np.full(1200, 0.918), "c"),
            market_of(late, "d"),
        )
    )


@pytest.fixture(scope="module")
def fitted(panel):
    """Return every model fitted on the first two thirds of the panel."""
    early = panel.until(panel.series[0].first_slot + 799)
    return {name: model().fit(early) for name, (model, _) in MODELS.items()}


def pinball(truth, quantiles) -> np.ndarray:
    """Return the pinball loss, averaged over levels."""
    error = truth[..., None] - quantiles
    return np.maximum(LEVELS * error, (LEVELS - 1) * error).mean(axis=-1)


@pytest.mark.parametrize("name", MODELS)
def test_a_flat_price_is_the_newest_value_without_spread(fitted, panel, name):
    given = fitted[name].outlook(panel, 2, np.arange(0, 1200, 50), H)
    assert (given.quantiles == 0.918).all()
    assert (given.mean == 0.918).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_price_that_came_to_rest_has_no_spread_and_one_that_woke_has(fitted, name):
    rest = np.concatenate([set_anew(400, seed=8), np.full(800, 2.0)])
    one = Panel(series=(market_of(rest, "a"),))
    given = fitted[name].outlook(one, 0, np.array([1100, 1150]), H)
    assert (given.quantiles == 2.0).all()
    woke = Panel(series=(market_of(np.concatenate([np.full(800, 1.0), set_anew(400, seed=9)]), "c"),))
    given = fitted[name].outlook(woke, 0, np.arange(1000, 1100), H)
    assert (given.quantiles[:, -1, -1] > given.quantiles[:, -1, 0]).any()


@pytest.mark.parametrize("name", MODELS)
def test_nothing_after_an_origin_is_read(fitted, panel, name):
    origins = np.array([820, 900, 1000])
    before = fitted[name].outlook(panel, 0, origins, H)
    for i, origin in enumerate(origins):
        rng = np.random.default_rng(int(origin))
        slot = panel.series[0].first_slot + int(origin)
        scrambled = []
        for one in panel.series:
            at = slot - one.first_slot + 1
            values = one.values.copy()
            values[at:] = rng.permutation(values[at:]) * 3.0
            scrambled.append(replace(one, values=values))
        after = fitted[name].outlook(Panel(series=tuple(scrambled)), 0, origins[i : i + 1], H)
        np.testing.assert_allclose(after.quantiles[0], before.quantiles[i], rtol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_one_pass_equals_many_and_a_shorter_horizon_is_its_beginning(fitted, panel, name):
    origins = np.arange(810, 1100, 23)
    together = fitted[name].outlook(panel, 1, origins, H)
    for i in (0, 5, 9):
        cut = panel.until(panel.series[1].first_slot + int(origins[i]))
        alone = fitted[name].outlook(cut, 1, origins[i : i + 1], 5)
        np.testing.assert_allclose(alone.quantiles[0], together.quantiles[i, :5], rtol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_a_fitted_model_survives_json(fitted, panel, name):
    again = restore_model(state_text(fitted[name]))
    origins = np.array([850, 951])
    np.testing.assert_allclose(
        again.outlook(panel, 0, origins, H).quantiles,
        fitted[name].outlook(panel, 0, origins, H).quantiles,
        rtol=1e-9,
    )


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "prices",
    [
        [1.0], [np.nan, np.nan, 0.5], [0.0] * 30, [1.0, 0.0] * 40, [0.3] * 5 + [np.nan] * 40 + [0.4],
        [1e-4, 50.0] * 60, [np.nan] * 20,
    ],
)  # fmt: skip
def test_odd_series_are_fitted_and_answered(name, prices):
    lone = Panel(series=(market_of(prices, "a"), market_of([np.nan] * 5, "b")))
    model = MODELS[name][0]().fit(lone)
    series = lone.series[0]
    origins = np.flatnonzero(series.newest >= 0)
    if origins.size:
        given = model.outlook(lone, 0, origins, 48)
        assert np.isfinite(given.quantiles).all()
        assert (np.diff(given.quantiles, axis=2) >= 0).all()
        assert np.isfinite(given.mean).all()
        assert len(given.reasons) == origins.size


@pytest.mark.parametrize("name", MODELS)
def test_an_empty_panel_and_a_market_never_seen(name, fitted, panel):
    MODELS[name][0]().fit(Panel(series=()))
    stranger = Panel(series=(market_of(set_anew(500, seed=5), "z", start=300),))
    given = fitted[name].outlook(stranger, 0, np.arange(0, 500, 7), H)
    assert np.isfinite(given.quantiles).all()


@pytest.mark.parametrize("name", ["changes", "lightgbm", "combined"])
def test_prices_set_anew_every_few_hours_are_foreseen(fitted, panel, name):
    series = panel.series[1]
    origins = np.arange(800, 1188)
    truth = series.values[origins[:, None] + np.arange(1, H + 1)]
    floor = LastValue().fit(series.part(0, 800)).outlook(series, origins, H).quantiles
    own = fitted[name].outlook(panel, 1, origins, H).quantiles
    skill = 1 - pinball(truth, own).mean(axis=0) / pinball(truth, floor).mean(axis=0)
    assert skill[0] > 0.05
    assert (skill[3:] > 0.2).all()


def test_the_hazard_knows_when_changes_are_due(fitted):
    process = fitted["changes"]
    key = market_of([1.0], "a").key
    ages = np.array([4.0, 12.0, 14.0])
    early, middle, late = process.hazard(key, ages, np.full(3, 12.0))
    assert early < 0.05 < middle < late


def test_chances_of_changes_add_up_and_arrive_one_after_another(fitted, panel):
    series = panel.series[0]
    chances = fitted["changes"].chances(series, price_state(series), np.arange(850, 900), 24)
    np.testing.assert_allclose(chances.sum(axis=2), 1.0)
    assert (np.diff(chances[:, :, 0], axis=1) <= 1e-12).all()
    assert chances[:, :8, 2].mean() < 0.03  # two changes take at least nine slots


def test_features_read_the_past_alone_and_have_a_column_each(panel):
    series = panel.series[0]
    whole = price_rows(series, price_state(series), np.array([300, 500]))
    assert whole.shape == (2, len(STATE_COLUMNS))
    cut = series.part(0, 301)
    np.testing.assert_allclose(price_rows(cut, price_state(cut), np.array([300]))[0], whole[0])


def test_a_state_lists_the_changes():
    state = price_state(market_of([1.0, 1.0, np.nan, 2.0, 2.0, 1.0]))
    assert state.when.tolist() == [3, 5]
    np.testing.assert_allclose(state.by, [np.log(2), -np.log(2)])
    assert state.age.tolist() == [np.inf, np.inf, np.inf, 0, 1, 0]
    assert state.moves.tolist() == [False] * 5 + [True]
    assert state.interval[-1] == 2.0


def test_law_quantiles_put_the_point_mass_where_it_belongs():
    logs = np.tile(np.array([-1.0, -0.5, 0.0, 0.5, 1.0]), (3, 1))
    q = distribution_quantiles(
        falls=np.array([0.01, 0.3, 0.0]), rises=np.array([0.04, 0.0, 0.9]), down=logs, up=logs
    )
    assert (q[0] == 0).all()
    assert (q[1] < 0).tolist() == (LEVELS < 0.3).tolist()
    assert (q[2] > 0).tolist() == (1 - LEVELS < 0.9).tolist()
    assert (np.diff(q, axis=1) >= 0).all()


def test_weighted_quantiles_equal_a_slow_twin():
    rng = np.random.default_rng(0)
    values = rng.normal(size=(6, 40)).round(1)
    values[2, :35] = np.nan
    values[3] = np.nan
    weights = np.exp2(-np.arange(40)[::-1] / 9)
    given = weighted_quantiles(values, weights)
    for row, out in zip(values, given, strict=True):
        seen = [(v, w) for v, w in zip(row, weights, strict=True) if not np.isnan(v)]
        if not seen:
            assert (out == 0).all()
            continue
        seen.sort()
        total = sum(w for _, w in seen)
        twin = []
        for level in LEVELS:
            mass = 0.0
            for value, weight in seen:
                mass += weight
                if mass / total >= level - 1e-9:
                    twin.append(value)
                    break
        np.testing.assert_allclose(out, np.array(twin) - twin[9])


def test_records_discount_what_was_known_and_nothing_else():
    rng = np.random.default_rng(1)
    at = np.array([10, 13, 16, 25, 40])
    losses = rng.random((3, at.size, SCORED_STEPS, len(PARTS)))
    changes = rng.integers(0, 2, (at.size, SCORED_STEPS)).astype(float)
    start = replace(
        empty_record(3, 9),
        losses=rng.random((3, SCORED_STEPS, len(PARTS))),
        changes=np.full(SCORED_STEPS, 2.0),
    )
    asked = np.array([9, 14, 17, 26, 60])
    given, seen = records(PastLosses(at=at, losses=losses, changes=changes), start, asked, 7.0)
    for i, now in enumerate(asked):
        for k in range(SCORED_STEPS):
            fade = 0.5 ** ((now - 9) / 7.0)
            twin, count = start.losses[:, k] * fade, 2.0 * fade
            for j, made in enumerate(at):
                if made + k + 1 <= now:
                    twin = twin + losses[:, j, k] * 0.5 ** ((now - made) / 7.0)
                    count += changes[j, k] * 0.5 ** ((now - made) / 7.0)
            np.testing.assert_allclose(given[:, i, k], twin)
            np.testing.assert_allclose(seen[i, k], count)


def test_part_losses_are_the_pinball_loss_in_parts_and_gaps_lose_nothing():
    rng = np.random.default_rng(2)
    quantiles = np.sort(rng.normal(size=(2, 5, 3, 19)), axis=-1)
    truth = rng.normal(size=(5, 3))
    truth[1, 1] = np.nan
    losses = part_losses(quantiles, truth)
    np.testing.assert_allclose(losses.sum(axis=-1) / 19, np.nan_to_num(pinball(truth, quantiles)))


def test_the_member_that_loses_least_is_followed():
    members = np.stack(
        [np.full((4, 2, 19), 1.0), np.sort(np.random.default_rng(3).normal(size=(4, 2, 19)), axis=-1)]
    )
    worse = np.ones((2, 4, SCORED_STEPS, len(PARTS)))
    worse[1] = 3.0
    many = np.full((4, SCORED_STEPS), 1000.0)
    even = np.ones((2, SCORED_STEPS, len(PARTS)))
    np.testing.assert_allclose(mixed_quantiles(members, worse, many, even), members[0], atol=1e-6)
    np.testing.assert_allclose(mixed_quantiles(members, worse[::-1], many, even), members[1], atol=1e-6)
    none = np.zeros((4, SCORED_STEPS))
    halfway = mixed_quantiles(members, worse, none, even)
    np.testing.assert_allclose(halfway[..., 18], members[..., 18].mean(axis=0))
    assert (halfway[..., 9] == 1.0).all()  # the median stays unless another member's was better


def test_the_combination_loses_little_where_nothing_can_be_foreseen():
    series = series_of(wandering(1500, seed=4), "price")
    panel = Panel(series=(series,))
    model = CombinedPrice().fit(panel.until(series.first_slot + 749))
    origins = np.arange(750, 1488)
    origins = origins[series.newest[origins] >= 0]
    truth = series.values[origins[:, None] + np.arange(1, H + 1)]
    floor = LastValue().fit(series.part(0, 750)).outlook(series, origins, H)
    given = model.outlook(panel, 0, origins, H)
    own, _ = bound_quantiles(given.quantiles, given.mean, series, origins)
    lost = np.nanmean(pinball(truth, own), axis=0) / np.nanmean(pinball(truth, floor.quantiles), axis=0)
    assert lost.max() < 1.05


def test_the_members_are_listed_by_name():
    assert list(PRICE_MEMBERS) == ["adaptive", "changes", "lightgbm"]
    few = CombinedPrice(names=("changes",)).fit(Panel(series=(market_of(set_anew(300, seed=6)),)))
    assert list(few.members) == ["changes"]


def test_members_are_weighed_on_days_that_they_were_not_estimated_on(panel, monkeypatch):
    """A member that memorises its training data, and nothing else, gets no weight."""

    class ByHeart:
        def fit(self, panel):
            return Recited(ends={one.key: one.end for one in panel.series})

    @dataclass(frozen=True)
    class Recited:
        ends: dict

        def outlook(self, panel, which, origins, horizon):
            series = panel.series[which]
            last, _ = series.last(origins), series.age(origins)
            steps = origins[:, None] + np.arange(1, horizon + 1)
            came = series.values[np.minimum(steps, len(series) - 1)]
            known = series.first_slot + steps < self.ends.get(series.key, 0)
            mean = np.where(known, came, 3.0 * last[:, None])
            return Outlook(
                quantiles=np.repeat(mean[:, :, None], LEVELS.size, axis=2),
                mean=mean,
                reasons=("",) * origins.size,
            )

    monkeypatch.setitem(PRICE_MEMBERS, "by heart", ByHeart)
    model = CombinedPrice(names=("adaptive", "by heart")).fit(panel)
    losses = np.mean([one.losses for one in model.kept.values()], axis=0)
    still, adaptive, by_heart = losses.reshape(3, -1).mean(axis=1)
    assert by_heart > 5 * max(still, adaptive)


def test_members_are_weighed_within_the_bounds(panel, monkeypatch):
    """A member whose upper quantiles are far above every bound has the losses of the bound."""

    @dataclass(frozen=True)
    class Constant:
        fitted: Any

        def fit(self, panel):
            return self.fitted

    @dataclass(frozen=True)
    class Fitted:
        high: float

        def outlook(self, panel, which, origins, horizon):
            series = panel.series[which]
            quantiles = np.repeat(series.last(origins)[:, None], horizon, axis=1)[:, :, None].repeat(
                19, axis=2
            )
            quantiles[:, :, 15:] = np.maximum(self.high, series.upper[origins][:, None, None])
            return Outlook(quantiles=quantiles, mean=quantiles[:, :, 9], reasons=("",) * origins.size)

    kept = []
    for high in (0.0, 5e6):
        monkeypatch.setitem(PRICE_MEMBERS, "high", partial(Constant, Fitted(high)))
        kept.append(CombinedPrice(names=("high",)).fit(panel).kept)
    assert kept[0]
    for key, record in kept[0].items():
        assert record.losses[1, :, 4].max() > 0
        assert np.array_equal(record.losses, kept[1][key].losses)
