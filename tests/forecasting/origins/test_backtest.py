"""Rolling origins with a refit cadence of their own (M6.4, M6.5)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pandas as pd
import pytest
from series_kit import HALF_HOUR, wandering

from forecasting.forecast import Forecast
from forecasting.origins.backtest import backtest, refit_groups, second_half
from forecasting.predictors import make_predictor
from warehouse.errors import SettingsError
from warehouse.history import History


@dataclass
class Watched:
    """Last value, noting what it was shown."""

    name: str = "watched"
    fits: list[pd.Timestamp] = field(default_factory=list)
    seen: list[pd.Timestamp] = field(default_factory=list)

    def fit(self, history: History):
        self.fits.append(history.known_at)
        return WatchedFit(self, make_predictor("last_value").fit(history))


@dataclass
class WatchedFit:
    owner: Watched
    inner: object

    def forecast_many(self, history: History, origins, *, horizon: int) -> list[Forecast]:
        self.owner.seen.append(history.slots[-1] - origins[-1])
        return [
            replace(f, predictor="watched")
            for f in self.inner.forecast_many(history, origins, horizon=horizon)
        ]


def test_refits_come_at_their_cadence_and_forecasts_at_every_origin():
    whole = wandering(300)
    origins = list(whole.slots[100:200])
    watched = Watched()
    result = backtest([watched], whole, origins=origins, horizon=4, refit_every=pd.Timedelta(hours=12))
    assert watched.fits == origins[::24]
    assert [f.issued_at for f in result.forecasts["watched"]] == origins
    assert set(watched.seen) == {pd.Timedelta(0)}, "handed slots after its last origin"
    assert set(result.forecasts) == {"watched", "last_value", "seasonal_naive"}
    assert len(result.issued()) == 300
    assert set(result.scores()["model"]) == set(result.forecasts)


def test_one_refit_at_the_first_origin_when_no_cadence_is_given():
    whole = wandering(200)
    watched = Watched()
    backtest([watched], whole, origins=list(whole.slots[100:150]), horizon=2)
    assert watched.fits == [whole.slots[100]]


def test_groups_follow_the_origins_that_there_are():
    at = pd.DatetimeIndex(
        [pd.Timestamp("2025-01-01", tz="UTC") + k * HALF_HOUR for k in (0, 1, 5, 6, 30, 31, 34)]
    )
    groups = refit_groups(at, 4 * HALF_HOUR)
    assert [len(g) for g in groups] == [2, 2, 2, 1]
    assert refit_groups(at[:0], HALF_HOUR) == []
    assert [len(g) for g in refit_groups(at, pd.Timedelta(0))] == [1] * 7


def test_a_backtest_equals_living_through_it():
    """Refit and forecast one origin at a time, each time with nothing but the past in hand."""
    whole = wandering(260)
    origins = list(whole.slots[150:190:5])
    result = backtest(["markov"], whole, origins=origins, horizon=6, refit_every=10 * HALF_HOUR)
    for i, origin in enumerate(origins):
        fit_at = origins[i - i % 2]
        alone = (
            make_predictor("markov").fit(whole.until(fit_at)).extend(whole.until(origin)).forecast(horizon=6)
        )
        made = result.forecasts["markov"][i]
        assert (alone.count == made.count).all()
        assert alone.price == pytest.approx(made.price)


def test_origins_off_the_grid_are_refused():
    whole = wandering(50)
    for origins in ([whole.slots[3] + HALF_HOUR / 2], [whole.slots[5], whole.slots[4]], [whole.slots[4]] * 2):
        with pytest.raises(SettingsError, match="ascending slots"):
            backtest(["last_value"], whole, origins=origins, horizon=2)


def test_the_usual_origins_are_the_second_half():
    whole = wandering(11)
    assert second_half(whole) == list(whole.slots[4:10])
