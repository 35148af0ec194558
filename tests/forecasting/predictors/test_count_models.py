"""Count models over panels: each part compared with a slower method, no look-ahead, and promised properties (M6.2, M6.6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import HALF_HOUR, MARKET, make_history
from series_kit import wandering
from standing import standing

from slackwater.forecasting.predictor import NEVER_SEEN, Panel, restore_model, state_text
from slackwater.forecasting.predictors.combined import (
    COUNT_HALF_LIFE,
    NODES,
    ObservedMembers,
    StackedCount,
    correct_distributions,
    crps,
    error_products,
    share_of_mixture,
    simplex_weights,
    transforms,
)
from slackwater.forecasting.predictors.count_members import (
    MEMBERS,
    Likeness,
    Track,
    analog_distributions,
    expectations,
    hour_distributions,
    member_distributions,
    phases,
    readings,
    recent_distributions,
    situation_of,
    smooth_values,
)
from slackwater.forecasting.predictors.distributions import at_least, distribution_of, indicator, quantiles_of
from slackwater.forecasting.predictors.last_value import LastValue
from slackwater.forecasting.predictors.lightgbm import BoostedCount, count_rows, peers_of, thresholds_of
from slackwater.forecasting.quantiles import LEVELS
from slackwater.forecasting.series import Series, newest_observed, series_of
from slackwater.warehouse.history import Market

NAN = float("nan")
RNG = np.random.default_rng


def probed(slots, *, seed=0, cap=6, per_slot=3, gaps=0.03, zone="us-east-1a", first=976_800):
    """Return a count read ``per_slot`` times a slot that stays and jumps, with gaps."""
    rng = RNG(seed)
    n = slots * per_slot
    level = np.maximum.accumulate(np.where(rng.random(n) < 0.08, np.arange(n), 0))
    seen = rng.integers(0, cap + 1, n)[level].astype(float)
    seen[rng.random(n) < gaps] = NAN
    table = seen.reshape(slots, per_slot)
    values = table[:, -1]
    return Series(
        variable="count", values=values, upper=np.full(slots, float(cap)),
        newest=newest_observed(values), slots_per_day=48, first_slot=first, step=HALF_HOUR, source="test",
        market=replace(MARKET, zone=zone), within=table[:, :-1],
    )  # fmt: skip


def test_quantiles_are_the_least_values_that_reach_the_level():
    distribution = RNG(0).dirichlet(np.full(9, 0.3), size=50)
    slow = [[int(np.argmax(np.cumsum(row) >= level - 1e-9)) for level in LEVELS] for row in distribution]
    assert quantiles_of(distribution).tolist() == slow
    assert distribution_of(at_least(distribution)) == pytest.approx(distribution)
    assert indicator(np.array([NAN, 9.0, 1.0]), 3).sum(axis=1).tolist() == [0, 0, 1]


def test_recent_laws_are_weighted_shares_of_past_readings():
    series = probed(30)
    seen, per_slot = readings(series)
    for parity in (-1, 0, 1):
        fast = recent_distributions(series, 2.0, 7, parity=parity)
        for t in (0, 7, 29):
            now = t * per_slot + per_slot - 1
            mass = np.zeros(7)
            for i in range(now + 1):
                if not np.isnan(seen[i]) and (parity < 0 or (now - i) % 2 == parity):
                    mass[int(seen[i])] += 0.5 ** ((now - i) / (2.0 * per_slot))
            assert fast[t] == pytest.approx((mass + 1e-3 / 7) / (mass.sum() + 1e-3), abs=1e-12)


def test_smoothed_is_a_weighted_mean_of_the_observed_past():
    values = wandering(40, gaps=0.3).available
    fast = smooth_values(values[:, None], 3.0)[:, 0]
    for t in range(40):
        known = [(values[s], 0.5 ** ((t - s) / 3.0)) for s in range(t + 1) if not np.isnan(values[s])]
        expected = sum(v * w for v, w in known) / sum(w for _, w in known) if known else NAN
        assert fast[t] == pytest.approx(expected, nan_ok=True)


def test_analogs_weigh_past_pairs_by_likeness_and_age():
    series = probed(60, seed=3)
    values, like, cap = series.values, Likeness(half_life=5.0, before=0.5), 6
    swing = np.full(60, 1.5)
    places, steps = np.array([0, 1, 2, 20, 59]), np.array([1, 2, 7, 30])
    earlier = phases(series)[0].values
    fast = analog_distributions(
        [Track(values=v, score=v) for v in (values, earlier)], swing, places, steps, like, cap + 1
    )
    for i, k in np.ndindex(places.size, steps.size):
        t, step = places[i], steps[k]
        mass = np.full(cap + 1, 1e-3 / (cap + 1))
        if not np.isnan(values[t]):
            mass[int(values[t])] += like.stay
            for track in (values, earlier):
                for s in range(max(0, t - step - like.window + 1), t - step + 1):
                    pair = (track[s], track[s + step])
                    if np.isnan(pair).any():
                        continue
                    far = abs(values[t] - pair[0])
                    if s > 0 and not np.isnan(values[t - 1] - track[s - 1]):
                        far += 0.5 * abs(values[t - 1] - track[s - 1])
                    weight = 0.5 ** ((t - step - s) / 5.0) * np.exp(-far / 1.5)
                    if values[t] != pair[0] and ({values[t], pair[0]} & {0.0, float(cap)}):
                        weight *= 0.25
                    mass[int(pair[1])] += weight
        assert fast[i, k] == pytest.approx(mass / mass.sum(), abs=1e-12)


def test_phases_are_the_same_readings_a_part_of_a_slot_earlier():
    series = probed(20, gaps=0.0)
    seen, _ = readings(series)
    for back, phase in zip((1, 2), phases(series), strict=True):
        assert np.array_equal(phase.values[1:], seen[2 - back :: 3][1:20])
        assert np.isnan(phase.values[0]) == (back > 2)
    assert phases(series_of(wandering(20), "count")) == ()


def test_the_hour_of_day_counts_earlier_days_alone():
    series = replace(probed(48 * 5, gaps=0.0), within=np.zeros((240, 0)))
    seen = indicator(series.values, 7)
    distribution = hour_distributions(series, seen, np.array([200]), np.array([1, 47, 48]))
    for j, k in enumerate((1, 47, 48)):
        mass = np.full(7, 1e-3 / 7)
        for d in range(1, 6):
            for off in range(-2, 3):
                s = 200 + k - 48 * d + off
                if s >= 0 and 200 + k - 48 * d + 2 <= 200:
                    mass += seen[s] * 0.8 ** (d - (1 if k <= 46 else 2))
        assert distribution[0, j] == pytest.approx(mass / mass.sum(), abs=1e-9)
    assert hour_distributions(replace(series, slots_per_day=0), seen, np.array([200]), np.array([1])) is None


def test_weights_minimise_the_past_score_on_the_simplex():
    rng = RNG(1)
    distributions, came = rng.dirichlet(np.ones(5), size=(3, 40)), rng.integers(0, 5, 40).astype(float)
    came[::7] = NAN
    products = error_products(distributions, came)
    for t in range(0, 40, 3):
        for a in range(3):
            for b in range(3):
                errors = [
                    (np.cumsum(distributions[m, t])[:-1] - (came[t] <= np.arange(4)))
                    if came[t] == came[t]
                    else np.zeros(4)
                    for m in (a, b)
                ]
                assert products[t, a, b] == pytest.approx(float(errors[0] @ errors[1]) / 4)
    matrix = products.sum(axis=0)
    weights = simplex_weights(matrix, np.full(3, 1 / 3))
    grid = [(a, b, 1 - a - b) for a in np.linspace(0, 1, 41) for b in np.linspace(0, 1 - a, 41)]
    ridge = 0.005 * np.trace(matrix) / 3 * np.eye(3)
    best = min(np.array(w) @ (matrix + ridge) @ np.array(w) for w in grid)
    assert weights.sum() == pytest.approx(1.0)
    assert weights @ (matrix + ridge) @ weights <= best * 1.01
    assert simplex_weights(np.zeros((2, 3, 3)), np.full(3, 1 / 3)) == pytest.approx(np.full((2, 3), 1 / 3))


def watched_of(places):
    rng = RNG(2)
    distributions = rng.dirichlet(np.ones(4), size=(2, places, NODES.size))
    came = rng.integers(0, 4, (places, NODES.size)).astype(float)
    return ObservedMembers(start=100, distributions=distributions, came=came, half_life=COUNT_HALF_LIFE)


def test_running_sums_take_a_forecast_in_when_it_comes_true():
    watched = watched_of(30)
    fast = watched.products(110, np.array([112, 120]))
    terms = error_products(watched.distributions, watched.came)
    for row, at in zip(fast, (112, 120), strict=True):
        for j, k in enumerate(NODES):
            slow = np.zeros((2, 2))
            for s in range(30):
                true_at = 100 + s + k
                if 110 <= true_at <= at:
                    slow += terms[s, j] * 0.5 ** ((at - true_at) / COUNT_HALF_LIFE)
            assert row[j] == pytest.approx(slow, abs=1e-12)
    both = watched.products(116, np.array([120]), watched.products(110, np.array([115]))[0])
    assert both[0] == pytest.approx(fast[1])


def test_losses_of_mixture_and_last_value_are_summed_without_forgetting():
    watched = watched_of(30)
    fast = watched.losses(watched.distributions, 100, np.array([128]), np.ones((NODES.size, 2)))[0]
    for j, k in enumerate(NODES):
        for i in range(2):
            slow = 1.0
            for s in range(30):
                if 100 + s + k <= 128:
                    below = watched.came[s, j] <= np.arange(4)
                    slow += ((np.cumsum(watched.distributions[i, s, j]) - below) ** 2).sum() / 3
            assert fast[j, i] == pytest.approx(slow)


def test_the_share_of_the_mixture_follows_the_relative_difference_of_losses():
    """M6.2: 0.9 / (1 + exp(-1 - 40 d)), with d = 0 without any loss."""
    losses = np.array([[1.0, 3.0], [3.0, 1.0], [19.0, 21.0], [0.0, 0.0]])
    expected = [0.9 / (1 + np.exp(-1 - 40 * d)) for d in (0.5, -0.5, 0.05, 0.0)]
    assert share_of_mixture(losses) == pytest.approx(expected)


def test_transforms_spread_over_the_mass_of_what_came():
    distribution = np.array([[0.1, 0.6, 0.3]] * 3)
    share = transforms(distribution, np.array([0.0, 1.0, NAN]))
    assert share[0, :5] == pytest.approx(np.r_[0.02, 0.08, 0.15, 0.25, 0.5])
    assert share[1].sum() == pytest.approx(1.0)
    assert np.flatnonzero(share[1] > 1e-9).tolist() == list(range(5, 17))
    assert share[2].sum() == 0


def test_a_law_that_is_too_narrow_is_widened_and_covers():
    """Split in time: transforms of the first half correct the second."""
    rng = RNG(4)
    came = np.clip(np.round(rng.normal(20, 6, 4000)), 0, 40)
    grid = np.arange(41)
    narrow = np.exp(-0.5 * ((grid - 20) / 3.0) ** 2)
    distribution = np.repeat((narrow / narrow.sum())[None], 4000, axis=0)
    past = transforms(distribution[:2000], came[:2000]).sum(axis=0)
    after = correct_distributions(distribution[2000:], past)
    assert after.sum(axis=1) == pytest.approx(np.ones(2000))
    for issued, low, high in ((distribution[2000:], 0.4, 0.6), (after, 0.78, 0.82)):
        share = transforms(issued, came[2000:]).mean(axis=0)[5:-5].sum()
        assert low < share < high
    uniform = 1e9 * np.diff(
        np.r_[0.0, 0.002, 0.01, 0.025, np.linspace(0.05, 0.95, 19), 0.975, 0.99, 0.998, 1.0]
    )
    assert correct_distributions(distribution[:3], uniform) == pytest.approx(distribution[:3], abs=1e-6)


MODELS = {
    "stacked": StackedCount(),
    "no trees": StackedCount(members=tuple(MEMBERS)),
    "boosted": BoostedCount(),
}


#: The quick forms of the stacked model: the others here, and the combination in test_predictors.py, of which it is a part.
each_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name == "stacked" else name for name in MODELS]
)


@each_model
def test_nothing_after_an_origin_moves_a_forecast(name):
    """M1.2: scrambling values, readings and peers after an origin changes later forecasts only."""
    panel = Panel(series=tuple(probed(220, seed=s, zone=f"us-east-1{z}") for s, z in enumerate("abc")))
    fitted = MODELS[name].fit(panel.until(panel.series[0].first_slot + 159))
    origins = np.arange(165, 219)
    whole = fitted.outlook(panel, 0, origins, 6)
    rng = RNG(9)
    changed = []
    for one in panel.series:
        values, within = one.values.copy(), one.within.copy()
        values[191:], within[191:] = rng.integers(0, 7, 29), rng.integers(0, 7, (29, 2))
        changed.append(replace(one, values=values, within=within, newest=newest_observed(values)))
    other = fitted.outlook(Panel(series=tuple(changed)), 0, origins, 6)
    before = origins <= 190
    assert np.array_equal(whole.distribution[before], other.distribution[before])
    assert not np.array_equal(whole.distribution[~before], other.distribution[~before])


@each_model
def test_a_fitted_model_is_the_same_from_text_and_in_one_or_many_calls(name):
    panel = Panel(series=tuple(probed(200, seed=s, zone=f"us-east-1{z}") for s, z in enumerate("ab")))
    fitted = MODELS[name].fit(panel.until(panel.series[0].first_slot + 149))
    origins = np.arange(150, 200, 7)
    whole = fitted.outlook(panel, 1, origins, 5)
    again = restore_model(state_text(fitted))
    for i, origin in enumerate(origins):
        cut = panel.until(panel.series[1].first_slot + int(origin))
        one = again.outlook(cut, 1, np.array([origin]), 5)
        assert one.distribution[0] == pytest.approx(whole.distribution[i], abs=1e-12)
        assert whole.distribution[i].sum(axis=-1) == pytest.approx(np.ones(5))


def test_members_are_laws_and_read_nothing_later():
    series = probed(300, seed=5)
    places, steps = np.array([120, 200, 299]), np.array([1, 4, 12])
    expected = expectations(Panel(series=(series,)), NODES)
    distributions = member_distributions(situation_of(series, places, steps, 7, expected.of), tuple(MEMBERS))
    assert distributions.shape == (len(MEMBERS), 3, 3, 7)
    assert distributions.sum(axis=-1) == pytest.approx(np.ones((len(MEMBERS), 3, 3)))
    cut = series.part(0, 201)
    part = member_distributions(situation_of(cut, places[:2], steps, 7, expected.of), tuple(MEMBERS))
    assert np.array_equal(part, distributions[:, :2])


def test_rows_of_the_trees_read_nothing_later():
    panel = Panel(series=tuple(probed(200, seed=s, zone=f"us-east-1{z}") for s, z in enumerate("ab")))
    cut = panel.until(panel.series[0].first_slot + 150)
    for place in (20, 150):
        rows = [
            count_rows(
                situation_of(p.series[0], np.array([place]), np.array([1]), 7),
                peers_of(p, 0),
                thresholds_of(7),
            )
            for p in (panel, cut)
        ]
        assert np.array_equal(rows[0], rows[1], equal_nan=True)


def test_alternating_probes_are_followed_where_last_value_is_always_wrong():
    """16, 0, 16, 0 ... read three times a slot: with an odd number of readings the value alternates every slot."""
    seen = np.tile([16.0, 0.0], 450).reshape(300, 3)
    series = replace(probed(300, cap=16), values=seen[:, -1], within=seen[:, :-1], newest=np.arange(300))
    panel = Panel(series=(series,))
    fitted = StackedCount(members=tuple(MEMBERS)).fit(panel.until(series.first_slot + 199))
    made = fitted.outlook(panel, 0, np.arange(250, 290), 2)
    for k in (1, 2):
        assert (made.quantiles[:, k - 1, 9] == series.values[np.arange(250, 290) + k]).mean() > 0.9


def test_markets_never_seen_flat_and_too_large_are_answered_and_labelled():
    known, new = probed(200), probed(200, seed=3, zone="us-west-2a")
    fitted = StackedCount().fit(Panel(series=(known,)))
    made = fitted.outlook(Panel(series=(known, new)), 1, np.array([150, 199]), 3)
    assert set(made.reasons) == {NEVER_SEEN}
    large = replace(new, values=new.values + 200, upper=new.upper + 200, within=np.zeros((200, 0)))
    assert "206 instances at most" in fitted.outlook(Panel(series=(large,)), 0, np.array([199]), 3).reasons[0]
    flat = make_history([1.0] * 300, [4] * 300)
    forecast = standing("combined", flat).forecast(horizon=12)
    assert (forecast.count == 4).all()


def test_the_combination_beats_last_value_on_a_flickering_market():
    """Two days mostly at 6, two days mostly at 0, with single slots of the other value: the present value misleads."""
    mostly = np.tile(np.repeat([0.0, 6.0], 96), 4)
    count = np.where(RNG(0).random(mostly.size) < 0.15, 6 - mostly, mostly)
    own = replace(series_of(make_history([1.0] * count.size, count, capacity=6), "count"), source="test")
    panel = Panel(series=(own,))
    fitted = StackedCount(members=tuple(MEMBERS)).fit(panel.until(own.first_slot + 399))
    origins = np.arange(400, 690)
    came = own.values[origins + 4]
    seen = ~np.isnan(came) & ~np.isnan(own.values[origins])
    made = fitted.outlook(panel, 0, origins[seen], 4).quantiles[:, 3]
    change = own.values[4:400] - own.values[:396]
    floor = np.clip(own.values[origins[seen], None] + np.nanquantile(change, LEVELS), 0, 6)

    def loss(quantiles):
        error = came[seen, None] - quantiles
        return np.maximum(LEVELS * error, (LEVELS - 1) * error).mean()

    assert loss(made) < 0.85 * loss(floor)


def test_panels_hold_one_kind_and_no_market_twice():
    with pytest.raises(Exception, match="no market of a source twice"):
        Panel(series=(probed(10), probed(10)))
    other = replace(probed(10), step=pd.Timedelta(hours=1), market=Market.parse("a/b/c/d"))
    with pytest.raises(Exception, match="one variable and one step"):
        Panel(series=(probed(10), other))


def test_members_are_weighed_on_slots_that_nothing_was_estimated_on(monkeypatch):
    ends = []

    def told(panel, nodes):
        ends.append(max(one.end for one in panel.series))
        return expectations(panel, nodes)

    monkeypatch.setattr("slackwater.forecasting.predictors.combined.expectations", told)
    series = probed(300)
    model = StackedCount(members=("stay", "recent_half_hour")).fit(Panel(series=(series,)))
    assert ends == [series.end - 96, series.end]  # the last two days
    assert model.record[series.key].any()


def trending(slots, gap=None):
    """Return a count that walks slowly on 0..40, read three times a slot; ``gap`` slots before the end are not observed."""
    rng = RNG(8)
    seen = np.clip(20 + np.cumsum(rng.choice([-1.0, 0.0, 1.0], 3 * slots)), 0, 40).reshape(slots, 3)
    own = series_of(make_history([1.0] * slots, seen[:, -1], capacity=40), "count")
    values, within = own.values.copy(), seen[:, :-1].copy()
    if gap:
        values[-gap:], within[-gap:] = NAN, NAN
    return replace(own, source="test", values=values, within=within, newest=newest_observed(values))


@each_model
def test_a_count_that_is_hours_old_is_forecast_over_its_age(name):
    """Steps count from the newest reading: k steps after a reading g slots old are k + g steps after its slot."""
    whole = Panel(series=(trending(300),))
    fitted = MODELS[name].fit(whole.until(whole.series[0].first_slot + 259))
    old = fitted.outlook(Panel(series=(trending(300, gap=7),)), 0, np.array([299]), 3)
    fresh = fitted.outlook(whole.until(whole.series[0].first_slot + 292), 0, np.array([292]), 10)
    assert old.reasons == ("",)
    assert np.abs(old.distribution[0] - fresh.distribution[0, :3]).max() > 0.05
    assert old.distribution[0] == pytest.approx(fresh.distribution[0, 7:], abs=0.02)


def test_last_value_replaces_a_mixture_that_has_lost_to_it():
    """On a slow walk the distribution of the last two days is far worse than last value with its spread."""
    series, origins, distributions = trending(400), np.arange(340, 390), {}
    panel = Panel(series=(series,))
    for second in (False, True):
        model = StackedCount(members=("recent_2_days",), second_level=second)
        fitted = model.fit(panel.until(series.first_slot + 330))
        distributions[second] = fitted.outlook(panel, 0, origins, 2).distribution[:, 1]
    came = series.values[origins + 2]
    last = LastValue().fit(series.part(0, 331)).distributions(series, origins, np.array([2]), 41)[:, 0]
    assert crps(distributions[True], came).mean() < 0.5 * crps(distributions[False], came).mean()
    assert crps(distributions[True], came).mean() == pytest.approx(crps(last, came).mean(), rel=0.02)
