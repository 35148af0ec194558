"""M6.4: a fitted forecaster is stored once and read only by readers that could have known it."""

import pandas as pd
import pytest
from storekit import DAY, HOUR, T0

from slackwater.warehouse.errors import SettingsError, StoreError
from slackwater.warehouse.issued import FittedState, load_fitted, read_rows, save_fitted
from slackwater.warehouse.store.connection import open_store


def state(text="{}", **other):
    values = {
        "predictor": "arima", "variable": "count", "panel": "a/b/c/d@lab", "step": HOUR, "fitted_at": T0,
        "known_at": T0, "state": text,
    }  # fmt: skip
    return FittedState(**(values | other))


def load(store, panels=("a/b/c/d@lab",), **other):
    values = {"predictor": "arima", "step": HOUR, "panels": panels, "fitted_at": T0, "known_at": T0 + DAY}
    return load_fitted(store, **(values | other))


def test_states_come_back_as_they_were(store):
    kept = [state("{1}"), state("{2}", variable="price"), state("{3}", panel="x@lab", known_at=T0 + HOUR)]
    assert save_fitted(store, kept).added == 3
    found = load(store, ["a/b/c/d@lab", "x@lab", "absent"])
    assert found == {(one.panel, one.variable): one for one in kept}
    assert found["x@lab", "count"].known_at.tz is not None


def test_only_the_very_estimation_asked_for_answers(store):
    save_fitted(store, [state("{1}")])
    for other in (
        {"predictor": "markov"}, {"step": DAY}, {"fitted_at": T0 + HOUR}, {"fitted_at": T0 - HOUR}, {"panels": ["b"]},
        {"panels": []},
    ):  # fmt: skip
        assert load(store, **other) == {}


def test_what_was_not_known_yet_is_not_read(store):
    save_fitted(store, [state("{1}", known_at=T0 + 2 * HOUR)])
    assert load(store, known_at=T0 + HOUR) == {}
    assert len(load(store, known_at=T0 + 2 * HOUR)) == 1


def test_nothing_overwrites_a_state(store):
    assert save_fitted(store, [state("{1}"), state("{2}")]).repeated == 1
    written = save_fitted(store, [state("{3}"), state("{4}", fitted_at=T0 - HOUR)])
    assert (written.added, written.repeated) == (1, 1)
    assert load(store)["a/b/c/d@lab", "count"].state == "{1}"
    assert len(read_rows(store, "fitted")) == 2
    assert save_fitted(store, []).added == 0


def test_states_outlive_the_process(tmp_path):
    with open_store(tmp_path / "w.duckdb") as store:
        save_fitted(store, [state("x" * 300_000)])
    with open_store(tmp_path / "w.duckdb", read_only=True) as store:
        assert load(store)["a/b/c/d@lab", "count"].state == "x" * 300_000


def test_impossible_states_are_refused(store):
    with pytest.raises(StoreError, match="at or after the fit time"):
        state(known_at=T0 - HOUR)
    naive = pd.Timestamp("2023-03-01")
    with pytest.raises(SettingsError, match="no time zone"):
        save_fitted(store, [state(fitted_at=naive, known_at=naive)])
    with pytest.raises(StoreError):
        save_fitted(store, [state(variable="weather")])
