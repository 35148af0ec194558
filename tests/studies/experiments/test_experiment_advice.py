"""E7: the advice of turns, simulated on small worlds and read off hand-made jobs."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from command_kit import printed
from make import make_job, make_window
from page_kit import charts_of, rendered
from tidy_folder import write_tidy

from slackwater.flows.show.formats import plain
from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import replay
from slackwater.optimization.selection.prior import read_prior
from slackwater.studies.experiments.advice import (
    ADVICE,
    BOUND,
    GRID,
    SELECTIONS,
    SHOWN,
    AdvisedSlot,
    SimulatedOutcome,
    advice_report,
    answer_of,
    best_fixed,
    follow_leaders,
    jobs_of,
    recorded_worlds,
    settings_for,
    simulate_world,
)
from slackwater.studies.experiments.study import StudyOptions
from slackwater.warehouse.errors import MarketError

STEP = pd.Timedelta(minutes=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the small folder with a price for each of its three zones."""
    data = write_tidy(tmp_path_factory.mktemp("tidy"), days=5.5)
    prices = pd.read_parquet(data / "prices.parquet")
    own = prices[prices["source"] == "lab:counts"]
    pd.concat([prices, *(own.assign(zone=zone) for zone in ("z2", "z3"))]).to_parquet(data / "prices.parquet")
    return data


@pytest.fixture(scope="module")
def world(folder):
    return recorded_worlds(folder)[0]


@pytest.fixture(scope="module")
def outcomes(folder, world):
    return simulate_world(StudyOptions(data=folder, fast=True, seed=2), world, 0, workers=1)


def test_a_world_is_the_zones_of_one_source_that_have_prices_of_their_own(world, folder, tmp_path):
    assert [place.market.zone for place in world.places] == ["z1", "z2", "z3"]
    assert {(place.capacity, place.on_demand_usd) for place in world.places} == {(16, 4.0)}
    assert world.source == "lab:counts"
    assert world.starts - world.begins == pd.Timedelta(days=3)
    with pytest.raises(MarketError, match="2 zones of one source for 5 days"):
        recorded_worlds(write_tidy(tmp_path / "other"))


def test_jobs_follow_each_other_in_every_market_and_none_ends_after_the_record(world):
    requests = jobs_of(world, until=world.ends, rng=np.random.default_rng(1))
    by_zone = {place.market.key: [] for place in world.places}
    for request in requests:
        by_zone[request.market].append(request)
    for own in by_zone.values():
        assert all(a.ends == b.starts for a, b in pairwise(own))
        assert own[-1].ends <= world.ends
    assert min(request.starts for request in requests) == world.starts
    widths = {cell.n_max for cell in GRID.cells}
    assert {request.n_max for request in requests} <= widths
    assert len({request.name for request in requests}) == len(requests)


def test_what_was_measured_in_the_world_itself_is_left_out(tmp_path, world):
    known = {one.source for one in read_prior()}
    some = sorted(known)[0]
    settings = settings_for(
        world.__class__(source=some, places=world.places, begins=world.begins), tmp_path, seed=5
    )
    assert {one.source for one in read_prior(settings.prior)} == known - {some}
    assert settings.models == (settings.planner,)


@pytest.mark.slow
def test_what_was_advised_is_what_the_deciding_policies_hold_when_replayed(outcomes):
    """Turn and replay share one engine: the same forecasts, record and leaders give the same instances."""
    assert len(outcomes) >= 3
    for one in outcomes:
        assert one.silent == one.apart == 0
        assert len(one.advice) <= one.slots
        assert {slot.policy for slot in one.advice} <= set(one.utility)
        assert set(SELECTIONS) | set(SHOWN) | {BOUND} <= set(one.utility)
        assert one.utility["OD-only"] == pytest.approx(one.worth - 1.0)
        assert max(value for name, value in one.utility.items() if name != BOUND) <= one.utility[BOUND] + 1e-6
        assert one.on_time
        assert one.cost_usd / one.unit == pytest.approx(one.worth - one.utility[ADVICE])


@pytest.mark.slow
def test_the_answer_adds_up(outcomes, folder):
    answer = answer_of(outcomes, data=str(folder), seed=2, fast=True)
    whole = answer["worlds"][0]
    rows = {row["what"]: row for row in whole["rows"]}
    best = best_fixed(outcomes)
    assert whole["best_fixed"] == best
    mean = {name: np.mean([one.utility[name] for one in outcomes]) for name in outcomes[0].utility}
    assert mean[best] == max(mean[name] for name in mean if name not in (*SELECTIONS, BOUND))
    assert rows["UP"]["advice_ahead"] == pytest.approx(mean[ADVICE] - mean["UP"])
    assert rows["OD-only"]["mean_cost"] == pytest.approx(1.0)
    for lost in answer["lost"]:
        assert lost["gap"] == pytest.approx(lost["fixed"] + lost["choosing"])
        assert lost["choosing"] == pytest.approx(lost["cold_start"] + lost["learning"])
        assert lost["fixed"] >= -1e-9
    assert (
        sum(row["decisions"] for row in answer["late"])
        == answer["slots"]
        == sum(len(one.advice) for one in outcomes)
    )
    json.dumps(plain(advice_report(answer).value), allow_nan=False)


@pytest.mark.slow
def test_a_person_sees_tables_and_a_course(outcomes, folder, capsys):
    answer = advice_report(answer_of(outcomes, data=str(folder), seed=2, fast=True))
    text = printed(answer.blocks)
    for words in ("best fixed policy in hindsight", "MSU-trim", "P(late)", "advice without prior"):
        assert words in text
    page = rendered(answer)
    assert len(charts_of(page)) == 1


def hand_made(name, *, start, utility, late=0.0, on_time=True, world="w"):
    at = pd.Timestamp("2025-03-03T00:00Z") + STEP * start
    advice = (AdvisedSlot(held=Allocation(0, 1), policy="UP", late=late, cost_usd=4.0),) * 2
    names = dict.fromkeys((*SELECTIONS, *SHOWN, BOUND), 0.5) | {BOUND: 1.0} | utility
    return SimulatedOutcome(
        job=name, world=world, market="m", start=at, slots=2, n_max=1, unit=8.0, worth=1.5, utility=names,
        right=0.9, cost_usd=6.0, on_time=on_time, advice=advice, apart=0, silent=0,
    )  # fmt: skip


def test_cold_start_is_what_was_lost_before_any_job_had_ended():
    outcomes = [
        hand_made("a", start=0, utility={ADVICE: 0.3}),
        hand_made("b", start=2, utility={ADVICE: 0.4}),
        hand_made("c", start=3, utility={ADVICE: 0.5}),
        hand_made("d", start=9, utility={ADVICE: 0.1}),
    ]
    lost = answer_of(outcomes, data="x", seed=1, fast=True)["lost"][0]
    assert lost["choosing"] == pytest.approx((0.2 + 0.1 + 0.0 + 0.4) / 4)
    assert lost["cold_start"] == pytest.approx((0.2 + 0.1) / 4)
    assert lost["learning"] == pytest.approx(0.4 / 4)
    assert lost["forecast_error"] == pytest.approx(0.9 - 1.3 / 4)
    assert lost["choosing_usd"] == pytest.approx(8.0 * 0.7 / 4)


def test_said_and_happened_stand_side_by_side():
    outcomes = [
        hand_made("a", start=0, utility={}, late=0.1, on_time=False),
        hand_made("b", start=4, utility={}, late=0.1),
        hand_made("c", start=8, utility={}, late=0.0),
    ]
    answer = answer_of(outcomes, data="x", seed=1, fast=True)
    rows = {row["from"]: row for row in answer["late"]}
    assert (rows[0.05]["decisions"], rows[0.05]["jobs"]) == (4, 2)
    assert (rows[0.05]["predicted"], rows[0.05]["observed"]) == (pytest.approx(0.1), pytest.approx(0.5))
    assert rows[0.05]["low"] is None, "both began on one day in one market: a single block"
    assert (rows[0.0]["decisions"], rows[0.0]["observed"]) == (2, 0.0)
    assert rows[0.5]["observed"] is None
    money = answer["money"][0]
    assert (money["expected"], money["paid"]) == (pytest.approx(0.5), pytest.approx(0.75))


def test_chances_are_shown_for_the_later_jobs_and_of_first_decisions_too():
    outcomes = [
        hand_made("a", start=0, utility={}, late=0.1, on_time=False),
        hand_made("b", start=40, utility={}, late=0.1),
        hand_made("c", start=60, utility={}, late=0.3, on_time=False),
        hand_made("d", start=500, utility={}, late=0.7, world="another"),
        hand_made("e", start=501, utility={}, late=0.7, world="another"),
    ]
    answer = answer_of(outcomes, data="x", seed=1, fast=True)
    later = {row["from"]: row["decisions"] for row in answer["late_later"]}
    assert later == {0.0: 0, 0.001: 0, 0.01: 0, 0.05: 2, 0.2: 2, 0.5: 2}, "b, c and e"
    assert [row["decisions"] for row in answer["late_first"]] == [0, 0, 0, 2, 1, 2]
    page = rendered(advice_report(answer))
    assert "Predicted P(late) and share of jobs late" in page
    (drawn,) = [chart for chart in charts_of(page) if "P(late)" in json.dumps(chart)]
    rows = drawn["datasets"]["rows"]
    assert len(rows) == 9
    assert {"x": 30, "y": 100, "series": "first decision of each job", "text": "1"} in rows


def test_a_share_of_late_jobs_has_an_interval_by_days():
    outcomes = [hand_made(f"j{k}", start=48 * k, utility={}, late=0.3, on_time=k % 3 > 0) for k in range(12)]
    row = next(row for row in answer_of(outcomes, data="x", seed=1, fast=True)["late"] if row["from"] == 0.2)
    assert (row["jobs"], row["observed"]) == (12, pytest.approx(1 / 3))
    assert 0.0 <= row["low"] < 1 / 3 < row["high"] <= 1.0


def test_jobs_are_worth_what_was_asked_for(folder):
    world = recorded_worlds(folder)[0]
    until = world.starts + pd.Timedelta(days=1)
    usual, poor = (
        jobs_of(world, until=until, rng=np.random.default_rng(1), **more) for more in ({}, {"worth": 0.75})
    )
    assert [one.value_usd for one in poor] == pytest.approx([0.5 * one.value_usd for one in usual])


def test_leaders_by_slot_do_what_each_of_them_would():
    """With a constant leader, the substitute policy equals that leader."""
    rng = np.random.default_rng(3)
    job = make_job(workload=20.0, deadline_slots=12, n_max=4, mu_up=0.9, mu_down=0.95, value=200.0)
    window = make_window(rng.uniform(0.5, 3.0, 12), rng.integers(0, 5, 12).astype(float), on_demand_usd=4.0)
    for name in ("UP", "AHANP(0.5)", "Stochastic(24)"):
        alone, stood = (replay(one, job, window) for one in (policy_named(name), follow_leaders([name] * 12)))
        assert stood.allocations == alone.allocations
    mixed = replay(follow_leaders(["OD-only"] * 3 + ["MSU"] * 9), job, window)
    assert all(not a.spot for a in mixed.allocations[:3])
