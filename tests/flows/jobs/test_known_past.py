"""The record that policies learn from: its range, its gaps, and the agreement of live decisions and replays (M1.2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import make_history, make_request, make_turn
from tidy_folder import START, write_tidy

from slackwater.flows.config import Settings
from slackwater.flows.histories import read_history
from slackwater.flows.ledger.fields import decision_row
from slackwater.flows.ledger.open_job import open_job
from slackwater.flows.places import find_market
from slackwater.flows.turn.context import MOST_PEERS, peers_of
from slackwater.flows.turn.decide import effort_of
from slackwater.forecasting.origins import backtest
from slackwater.optimization.job.definition import Allocation, Progress
from slackwater.optimization.job.request import job_on, slot_job
from slackwater.optimization.policies.contract import belief_of
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.decision import (
    RECORD_SPAN,
    chance_text,
    decide,
    market_record,
    record_start,
)
from slackwater.optimization.replay.run import replay, see
from slackwater.optimization.replay.score import ended_job, perfect_forecasts, score_job
from slackwater.warehouse.errors import MarketError
from slackwater.warehouse.history import History, Market
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta("30min")
FIRST = pd.Timestamp("2026-01-20T06:00Z")
SETTINGS = Settings(history_days=3, risk_paths=10, seed=5)
MARKET = "lab/r1/z1/a3-highgpu-1g@lab:counts"
#: Start of a slot well inside the tidy folder, followed by a job of 12 slots.
BEGIN = START.ceil("30min") + pd.Timedelta(days=6)


def history(slots: int, *, end=FIRST, known=None, clock=True, zone="z", values=None) -> History:
    """Return a history ending at ``end`` with counts rising by 1 per slot; ``known`` maps slots to their known_at."""
    start = end - (slots - 1) * STEP
    learned = pd.date_range(start, periods=slots, freq=STEP).map(lambda slot: (known or {}).get(slot, slot))
    counts = np.arange(slots, dtype=float) if values is None else np.asarray(values, dtype=float)
    return make_history(
        1.0 + counts / 1000,
        counts,
        start=start,
        known_at=learned,
        market=Market.parse(f"p/r/{zone}/t"),
        on_demand_usd=4.0,
        capacity=100_000,
        real_clock=clock,
    )


def test_the_record_reaches_from_its_span_before_the_job_to_the_slot_asked_for():
    long = history(1000)
    record = market_record(long, [], first=FIRST - 4 * STEP, last=FIRST - STEP, known_by=FIRST - STEP)
    assert record.first == RECORD_SPAN / STEP == 480
    assert record.price.shape == record.available.shape == (480 + 4,)
    assert record.available[-1] == 998  # the slot before the last slot of the history
    assert record.available[record.first] == 995
    assert record.peers.shape == (0, 484)
    assert record.slot_hours == 0.5
    assert record.hour == 4.0  # ten days before 04:00
    assert record.until(3).hour == 5.5
    with pytest.raises(MarketError, match="has no slot 4"):
        record.until(4)
    assert record_start(FIRST) == FIRST - RECORD_SPAN


def test_a_short_history_gives_a_short_record_and_no_clock_gives_no_hour():
    record = market_record(history(6, clock=False), [], first=FIRST - STEP, last=FIRST, known_by=FIRST)
    assert record.first == 4
    assert record.hour is None
    before_all = market_record(history(3), [], first=FIRST - 4 * STEP, last=FIRST, known_by=FIRST)
    assert before_all.first == 0
    assert np.isnan(before_all.available).tolist() == [True, True, False, False, False]


def test_a_row_learned_after_its_slot_and_after_the_job_began_is_a_gap():
    """Four slots end at FIRST; two became known late: the first before the job began, the second while it ran."""
    slots = [FIRST - k * STEP for k in (3, 2, 1, 0)]
    late = {slots[0]: slots[1], slots[2]: slots[2] + pd.Timedelta("5min")}
    market, peer = history(4, known=late), history(4, known=late, zone="y")
    replayed = market_record(market, [peer], first=slots[1], last=slots[3], known_by=slots[1])
    assert np.isnan(replayed.available).tolist() == [False, False, True, False]
    assert np.array_equal(np.isnan(replayed.price), np.isnan(replayed.available))
    assert np.array_equal(replayed.peers[0], replayed.available, equal_nan=True)
    job = replace(slot_job(request(), step=STEP, on_demand_usd=4.0), deadline_slots=3)
    assert np.array_equal(
        ended_job(job, slots[1], market).cases[0].record.available, replayed.available, equal_nan=True
    )
    live = market_record(market, [peer], first=slots[1], last=slots[3], known_by=slots[3])
    assert not np.isnan(live.available).any()


def test_peers_stand_on_the_slots_of_the_market():
    gone = history(4, end=FIRST - 2 * STEP, zone="y", values=[7, 8, np.nan, 9])
    ahead = history(4, end=FIRST + STEP, zone="x")
    record = market_record(history(5), [gone, ahead], first=FIRST, last=FIRST, known_by=FIRST)
    assert np.array_equal(
        record.peers, [[8, np.nan, 9, np.nan, np.nan], [np.nan, np.nan, 0, 1, 2]], equal_nan=True
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = write_tidy(tmp_path_factory.mktemp("tidy") / "data")
    with open_store(folder / "w.duckdb") as opened:
        ingest(opened, "tabular", folder, imported_at=BEGIN, progress=lambda _: None)
        yield opened


def request(name="learner", **changes):
    market, source = MARKET.split("@")
    return make_request(name, at=BEGIN, market=market, source=source, value_usd=120.0, **changes)


def taken(store, at, start=None):
    """Return the history of the market and of its peers, as read at ``at``."""
    turn = make_turn(store, at, SETTINGS)
    followed = find_market(store, MARKET, at=at, settings=SETTINGS)
    begin = record_start(BEGIN)
    own = read_history(store, followed, settings=SETTINGS, start=begin)
    return own, peers_of(turn, [followed], start=start or begin)[followed]


def test_a_live_record_ends_at_the_logical_time_and_is_the_replays_cut_there(store):
    """A live decision uses the same record as the replay of the ended job at that slot."""
    own, peers = taken(store, BEGIN + 12 * STEP)
    ended = ended_job(*job_on(request(), own), own, peers=[peers])
    assert len(peers) == 2
    assert ended.cases[0].record is not None
    assert len(ended.cases[0].record.price) == ended.cases[0].record.first + 12
    for slot in (0, 5, 11):
        own, peers = taken(store, BEGIN + slot * STEP)
        running = open_job(request(), [own], decided={}, peers=[peers]).live
        record = running.seen[0].record
        assert running.slot == slot
        assert record is not None
        assert len(record.price) - 1 - record.first == slot
        live, then = record.until(slot), ended.cases[0].record.until(slot)
        for name in ("price", "available", "peers"):
            assert np.array_equal(getattr(live, name), getattr(then, name), equal_nan=True), name
        assert live.hour == then.hour == 0.5 + 0.5 * slot  # the job begins at 00:30
        assert np.isfinite(live.peers[:, -6 * 48 :]).all()  # known for the last six days
        assert live.available[-1] == running.seen[0].available[slot]
        with pytest.raises(MarketError, match="covers the job"):
            record.until(slot + 1)


def test_peers_are_of_the_same_source_and_type_the_same_region_first_and_read_once(store):
    at = BEGIN
    turn = make_turn(store, at, SETTINGS)
    start = at - pd.Timedelta(days=2)
    one, two = (
        find_market(store, f"lab/r1/{zone}/a3-highgpu-1g@lab:counts", at=at, settings=SETTINGS)
        for zone in ("z1", "z2")
    )
    peers = peers_of(turn, [one, two], start=start)
    of_one, of_two = peers[one], peers[two]
    assert [peer.market.zone for peer in of_one] == ["z2", "z3"]
    assert [peer.market.zone for peer in of_two] == ["z1", "z3"]
    assert of_one[1] is of_two[1]
    alone = find_market(store, "lab/r1/z9/p3.2xlarge", at=at, settings=SETTINGS)
    assert peers_of(turn, [alone], start=start)[alone] == []


def test_no_more_than_the_most_peers_are_read(tmp_path):
    folder = write_tidy(tmp_path / "data", days=4)
    counts = pd.read_parquet(folder / "availability.parquet")
    zone = counts[counts["zone"] == "z2"]
    more = [zone.assign(zone=f"n{k:02d}", region="r0") for k in range(MOST_PEERS)]
    pd.concat([counts, *more]).to_parquet(folder / "availability.parquet")
    at = START.ceil("30min") + pd.Timedelta(days=3)
    with open_store(":memory:") as store:
        ingest(store, "tabular", folder, imported_at=at, progress=lambda _: None)
        turn = make_turn(store, at, SETTINGS)
        followed = find_market(store, MARKET, at=at, settings=SETTINGS)
        found = peers_of(turn, [followed], start=at - pd.Timedelta(days=1))[followed]
    zones = [peer.market.zone for peer in found]
    assert zones == ["z2", "z3", *(f"n{k:02d}" for k in range(MOST_PEERS - 2))]


@pytest.mark.parametrize("name", ["Stochastic", "AHAP(3,1,0.9,expected)"])
def test_what_a_policy_holds_does_not_depend_on_what_comes_later(store, name):
    """Scrambling the market and its peers after a slot changes no earlier allocation; the past it learned from matters."""
    own, peers = taken(store, BEGIN + 12 * STEP)
    policy, cut = policy_named(name), BEGIN + 5 * STEP

    def run(market, others):
        ended = ended_job(*job_on(request(), market), market, peers=[others])
        return replay(policy, ended.run, ended.cases[0].window, record=ended.cases[0].record).allocations

    true = run(own, peers)
    assert run(own, peers) == true
    mixed = run(scrambled(own, cut), [scrambled(peer, cut) for peer in peers])
    assert mixed[:6] == true[:6]
    assert mixed != true


def scrambled(market: History, after: pd.Timestamp) -> History:
    """Return the history with every count and price after ``after`` changed."""
    frame = market.frame.copy()
    later = frame.index > after
    frame.loc[later, "available"] = np.where(frame["available"][later] > 0, 0.0, 8.0)
    frame.loc[later, "price_usd"] = frame["price_usd"][later] * 0.5
    return replace(market, frame=frame)


class Watching:
    """Policy that runs no instances and records the length of the past at every slot."""

    name = "watching"

    def __init__(self):
        self.lengths = []

    def start(self, job):
        return None

    def decide(self, state, view):
        self.lengths.append((view.slot, len(view.past.price), view.past.peers.shape, view.past.age))
        return Allocation(0, 0), None

    def explain(self, state, view, allocation):
        return "watching"


def test_every_replay_and_decision_of_the_flows_gives_the_policy_its_past(store):
    own, peers = taken(store, BEGIN + 12 * STEP)
    scored = Watching()
    ended = ended_job(*job_on(request(), own), own, peers=[peers])
    score_job(ended, [scored])
    first = ended.cases[0].record.first
    assert scored.lengths == [(t, first + t + 1, (2, first + t + 1), 0) for t in range(12)]
    perfect = Watching()
    ahead = list(perfect_forecasts(ended.cases[0].window, 3))
    told = replace(ended, cases=(replace(ended.cases[0], forecasts=ahead),))
    score_job(told, [perfect])
    assert perfect.lengths == 2 * scored.lengths
    live = Watching()
    own, peers = taken(store, BEGIN + 4 * STEP)
    decide(open_job(request(), [own], decided={}, peers=[peers]).live, live, effort_of(SETTINGS))
    assert live.lengths[:5] == scored.lengths[:5]  # the slots decided before, then the present slot
    begins = first + 4 + 1
    # the simulated slots after the present
    assert sorted(set(live.lengths[5:])) == [(t, begins, (2, begins), t - 4) for t in range(4, 11)], (
        "the last slot is left to the guard"
    )


def test_a_live_decision_is_the_replays_and_comes_out_the_same_twice(store):
    own, peers = taken(store, BEGIN + 12 * STEP)
    policy = policy_named("Stochastic")
    ended = ended_job(*job_on(request(), own), own, peers=[peers])
    whole = replay(policy, ended.run, ended.cases[0].window, record=ended.cases[0].record)
    assert len(whole.allocations) > 7
    held = {BEGIN + slot * STEP: (MARKET, whole.allocations[slot]) for slot in range(7)}
    own, peers = taken(store, BEGIN + 7 * STEP)
    rows = []
    for _ in range(2):
        running = open_job(request(), [own], decided=held, peers=[peers])
        decision = decide(running.live, policy, effort_of(SETTINGS))
        assert decision.allocation == whole.allocations[7]
        rows.append(decision_row(running, decision))
    assert rows[0] == rows[1]


def test_one_decision_believes_one_thing_live_and_replayed(store):
    """The reason, the planning distribution, the sampled cost and lateness, and the forecast agree (M6.9)."""
    own, peers = taken(store, BEGIN + 12 * STEP)
    slots = [BEGIN + k * STEP for k in range(12)]
    (told,) = backtest([own], "markov", origins=slots, horizon=8).values()
    ended = ended_job(*job_on(request(), own), own, [told], [peers])
    replayed = see(ended.run, ended.cases[0].window, ended.cases[0].forecasts, ended.cases[0].record)
    used: list[bool] = []
    for name in ("Stochastic", "MSU"):
        policy = policy_named(name)
        for slot in (2, 6):
            now, beside = taken(store, BEGIN + slot * STEP)
            running = open_job(request(), [now], decided={}, forecasts=[told], peers=[beside]).live
            decision = decide(running, policy, effort_of(SETTINGS))
            live = belief_of(policy, running.view(Progress(), slot).views[0])
            past = belief_of(policy, replayed.view(ended.run, Progress(), slot))
            for part in ("count_now", "count_steps", "price_steps", "count_distribution", "price_quantiles"):
                np.testing.assert_array_equal(getattr(live, part), getattr(past, part))
            n = max(1, decision.allocation.total)
            chance = told[slot].probability_at_least(n, 1)
            stated = f"probability of {n} spot in the next slot: {chance_text(chance)}"
            assert decision.reason.count("probability of") == (stated in decision.reason)
            assert (stated in decision.reason) == decision.expected.uses_spot
            used.append(decision.expected.uses_spot)
            assert "chance of" not in decision.reason
            assert live.chance_of_spot(n) == pytest.approx(chance, abs=1e-6)
            counts = live.sample(1, paths=4000, rng=np.random.default_rng(0)).count
            assert (counts[:, 0] >= n).mean() == pytest.approx(chance, abs=0.03)
    assert set(used) == {True, False}
