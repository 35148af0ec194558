"""Probing at a cost: from a folder of recorded probes to the answer and the page (M10)."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from command_kit import printed
from page_kit import charts_of, rendered

from flows.experiments.probing import (
    ProbedSeries,
    errors_at,
    follow_series,
    probing_answer,
    probing_report,
    read_probed,
)
from flows.show.formats import plain
from optimization.trials.probing import Tracked
from warehouse.errors import MarketError

PRICES = (0.01, 0.1)


def moving(slots, seed, *, top, stay=0.95):
    rng, state, out = np.random.default_rng(seed), top, []
    for _ in range(slots):
        state = state if rng.random() < stay else int(rng.integers(0, top + 1))
        out.append(float(state))
    return np.array(out)


def table(tmp_path, **changes):
    rows = []
    for zone, top, gap in (("a", 1, 300), ("b", 4, 600)):
        times = pd.date_range("2025-01-01", periods=900, freq=f"{gap}s", tz="UTC")
        rows.append(
            pd.DataFrame(
                {
                    "provider": "lab", "region": "r", "zone": zone, "instance_type": "t", "timestamp": times,
                    "available": moving(900, ord(zone), top=top), "capacity_probed": float(top),
                    "gap_seconds": float(gap), "kind": "probe", "source": "s",
                }
            )
        )  # fmt: skip
    folder = tmp_path / "data"
    folder.mkdir()
    pd.concat(rows).assign(**changes).to_parquet(folder / "availability.parquet")
    return folder


@pytest.fixture(scope="module")
def results():
    series = [
        ProbedSeries(
            label=f"m{top}", capacity=top, step=pd.Timedelta(minutes=10), counts=moving(4000, top, top=top)
        )
        for top in (1, 4)
    ]
    return [follow_series(one, PRICES) for one in series]


@pytest.fixture(scope="module")
def answer(results):
    return probing_answer(results, PRICES, data="d", seed=1, fast=False, notes=["n"])


def test_series_are_read_on_their_own_grid(tmp_path):
    series, notes = read_probed(table(tmp_path))
    assert [(one.capacity, one.step) for one in series] == [
        (1, pd.Timedelta(minutes=5)),
        (4, pd.Timedelta(minutes=10)),
    ]
    np.testing.assert_array_equal(series[0].counts, moving(900, ord("a"), top=1))
    assert len(notes) == 1


def test_series_that_do_not_move_are_left_out_with_reasons(tmp_path):
    with pytest.raises(MarketError, match="changes in each half"):
        read_probed(table(tmp_path, available=1.0))


def test_the_second_half_is_known_only_where_it_was_probed():
    series = ProbedSeries(label="m", capacity=2, step=pd.Timedelta(minutes=10), counts=moving(1200, 3, top=2))
    changed = series.counts.copy()
    changed[1100:] = 0.0
    other = ProbedSeries(label="m", capacity=2, step=series.step, counts=changed)
    one, two = (follow_series(each, (0.01,)) for each in (series, other))
    assert one.fixed_train == two.fixed_train
    assert one.fixed[10].wrong == two.fixed[10].wrong == 0.0
    assert one.fixed[10].probes == 1.0


def test_the_numbers_are_those_of_the_results(results, answer):
    for one, name in zip(results, ("0/1", "counts"), strict=True):
        rows = {(row["rule"], row["price"]): row for row in answer["classes"][name]["rules"]}
        for place, price in enumerate(PRICES):
            mine = one.rules["best"][place]
            expected = (mine.absent + mine.unpredicted) + 6 * price * mine.probes
            assert rows["best", price]["cost"] == pytest.approx(expected)
            assert mine.cost * 6 == pytest.approx(expected)
            assert rows["every slot", price]["cost"] == pytest.approx(6 * price)
            costs = {m: f.absent + f.unpredicted + 6 * price * f.probes for m, f in one.fixed.items()}
            assert rows["fixed, best in hindsight", price]["cost"] == pytest.approx(min(costs.values()))
    again = json.loads(json.dumps(plain(answer), allow_nan=False))
    assert len(again["findings"]) == 2 * (len(PRICES) + 2)


def test_a_rule_that_looks_saves_where_a_series_is_its_chain(answer):
    for own in answer["classes"].values():
        rows = {(row["rule"], row["price"]): row["cost"] for row in own["rules"]}
        assert rows["best", 0.1] < rows["every slot", 0.1]
        assert rows["best", 0.1] < 1.1 * rows["fixed", 0.1]


def test_errors_between_two_intervals_are_interpolated():
    def paid(probes, absent):
        return Tracked(slots=1, probes=probes, absent=absent, unpredicted=0.0, wrong=0.0, cost=0.0)

    fixed = {10: paid(1.0, 0.0), 20: paid(0.5, 1.0), 40: paid(0.25, 3.0)}
    assert errors_at(fixed, 0.75) == pytest.approx(0.5)
    assert errors_at(fixed, 0.1) == pytest.approx(3.0)


def test_the_page_and_the_tables(answer):
    page = rendered(probing_report(answer))
    assert len(charts_of(page)) == 2
    assert rendered(probing_report(answer)) == page
    assert "Errors at the same number of probes" in printed(probing_report(answer).blocks)
