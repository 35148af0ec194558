"""A running multi-market job: its state, decision, reason and expected outcome (M11)."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import make_history, make_multi_job
from moving_markets import a_job, made, random_markets, replayed

from slackwater.optimization.job.definition import Allocation, InstanceTimes
from slackwater.optimization.moving.adapter import InOneMarket
from slackwater.optimization.moving.decision import ranked_markets
from slackwater.optimization.moving.definition import Placement, placement
from slackwater.optimization.moving.policies import GreedySpot, MeanField
from slackwater.optimization.policies.pace import LETS_GO
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.decision import Effort, LiveJob, ReportedState, decide, live_job
from slackwater.optimization.replay.run import see
from slackwater.warehouse.amounts import usd
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import Market

EFFORT = Effort(solver_seconds=1.0, risk_paths=60, seed=3)
START, STEP = pd.Timestamp("2026-01-01T00:00Z"), pd.Timedelta("1h")


def live_at(job, windows, records, slot, decided, reported=(), within=()):
    seen = [
        see(run, window, None, record) for run, window, record in zip(job.runs, windows, records, strict=True)
    ]
    return LiveJob(
        job=job,
        start=START,
        step=STEP,
        slot=slot,
        seen=tuple(seen),
        decided=decided,
        names=tuple(f"market-{m}" for m in range(len(seen))),
        reported=tuple(reported),
        within=tuple(np.where(np.arange(8)[:, None] < slot, own, np.nan) for own in within),
    )


def decide_at(live):
    return decide(live, MeanField(), EFFORT)


@pytest.mark.parametrize(
    ("policy", "markets", "home"),
    [
        (MeanField(), 3, None),
        (MeanField(), 3, 0),
        (InOneMarket(policy=policy_named("UP"), market=0), 3, 0),
        (MeanField(), 1, 0),
        (policy_named("UP"), 1, 0),
        (policy_named("Stochastic(24)"), 1, 0),
    ],
    ids=lambda value: getattr(value, "name", value),
)
@pytest.mark.parametrize("inside", [False, True], ids=["read at slots", "read inside too"])
def test_decided_slot_by_slot_it_is_the_replay(policy, markets, home, inside):
    """Also where spot is lost between slots, and where instances boot and restart."""
    times = InstanceTimes(boot=300.0, restart=600.0, checkpoint=900.0)
    for seed in range(2):
        job = make_multi_job(replace(a_job(load=0.5), times=times), markets, home=home)
        windows, records = random_markets(seed, 8, 3, markets=markets)
        within = None
        if inside:
            within = [
                np.random.default_rng([seed, m]).integers(0, 4, (8, 2)).astype(float) for m in range(markets)
            ]
        outcome = replayed(policy, job, windows, records=records, within=within)
        decided = {}
        for slot in range(8):
            live = live_at(job, windows, records, slot, decided, within=within or ())
            if live.is_finished:
                break
            made_of = decide(live, policy, EFFORT)
            decided[slot] = placement(made_of.market, made_of.allocation)
            assert made_of.expected.late_probability == 0.0
            assert made_of.probe_next is None
            if markets > 1:
                assert (made_of.moved_from is not None) == (made_of.reason.startswith("move from"))
        assert tuple(decided[slot].allocation for slot in decided) == outcome.allocations
        assert outcome.places in (None, tuple(one.market for one in decided.values()))
        run = live_at(job, windows, records, 8, decided, within=within or ()).reached().run
        assert (run.finish, run.paid_usd) == (outcome.finish, outcome.cost_usd)
        assert outcome.on_time


def test_the_state_of_a_job_is_its_run_in_the_world():
    job = make_multi_job(a_job(d=6, n_max=2), home=0)
    windows, records = random_markets(2, 6, 2)
    held = {
        0: Placement(0, Allocation(1, 0)),
        2: Placement(1, Allocation(2, 0)),
        3: Placement(1, Allocation(1, 0)),
    }
    live = live_at(job, windows, records, 4, held)
    run, progress = live.reached().run, live.progress()
    assert (progress.done, progress.cost_usd, progress.place) == (run.work, run.paid_usd, 1)
    assert (run.moves, run.moving_usd) == (1, 0.5)
    prices = [window.on_demand_usd for window in windows]
    assert run.paid_usd == pytest.approx(prices[0] + 3 * prices[1] + 0.5)


def test_a_move_to_spot_that_was_not_there_is_none():
    job = make_multi_job(a_job(d=6, n_max=2), home=0)
    windows, records = made(np.full((3, 46), 1.0), np.zeros((3, 46)), 40)
    progress = live_at(job, windows, records, 2, {0: Placement(1, Allocation(0, 2))}).progress()
    assert (progress.place, progress.cost_usd, progress.n_previous) == (0, 0.0, 0)


def test_a_report_sets_progress_and_size_not_the_place():
    job = make_multi_job(a_job(d=6, n_max=2), home=0)
    windows, records = random_markets(2, 6, 2)
    decided = {0: Placement(1, Allocation(2, 0))}
    live = live_at(job, windows, records, 2, decided, (ReportedState(slot=2, done=1.25, size=1),))
    progress = live.progress()
    assert (progress.done, progress.n_previous, progress.place) == (1.25, 1, 1)


def test_it_says_what_it_gains_by_moving():
    job = make_multi_job(a_job(d=8, n_max=3, load=0.6), home=0)
    counts = np.zeros((3, 48))
    counts[2] = 3.0
    windows, records = made(np.full((3, 48), 1.0), counts, 40)
    decision = decide_at(live_at(job, windows, records, 0, {}))
    assert decision.market == 2
    assert decision.moved_from == 0
    assert decision.move_usd == 0.5
    assert decision.reason.startswith("move from market-0 to market-2 with spot only: ")
    assert decision.reason.endswith("; the move brings 3 more spot instances and costs $0.50")
    free = decide_at(live_at(make_multi_job(a_job(d=8, n_max=3, load=0.9)), windows, records, 0, {}))
    assert free.reason.startswith("start in market-2, the best of 3 markets, with on-demand only: ")
    assert free.moved_from is None


def test_it_says_what_waiting_is_expected_to_save():
    """Spot is expensive in the only market that has any, and will soon be back in a cheap market."""
    counts = np.zeros((3, 248))
    counts[1] = 3.0
    counts[1, 5::6] = 0.0
    counts[2] = 3.0
    prices = np.full((3, 248), 1.0)
    prices[2] = 3.0
    job = make_multi_job(a_job(d=8, n_max=3, load=0.4))
    windows, records = made(prices, counts, 239)
    live = live_at(job, windows, records, 0, {})
    decision = decide_at(live)
    assert decision.allocation.total == 0
    said = re.fullmatch(
        r"no instances yet: waiting is expected to cost \$(\S+) less in all than the best start in this slot, "
        r"(\d) (?:spot|on-demand) in market-(\d), of 3 markets",
        decision.reason,
    )
    assert said is not None, decision.reason
    best = ranked_markets(live)[0]
    assert said.group(1) == usd(best.dearer_usd)
    assert (int(said.group(2)), int(said.group(3))) == (best.allocation.total, best.market)


def test_it_asks_for_the_count_that_it_does_not_know():
    job = make_multi_job(a_job(d=8, n_max=3, load=0.6), home=0)
    counts = np.zeros((3, 48))
    counts[1] = 3.0
    counts[1, 38:] = np.nan
    prices = np.full((3, 48), 1.0)
    windows, records = made(prices, counts, 40)
    decision = decide_at(live_at(job, windows, records, 0, {}))
    assert decision.probe_next == 1


def test_what_to_expect_is_what_comes_on_futures_that_are_known():
    job = make_multi_job(a_job(d=8, n_max=3, load=0.6), home=0)
    counts = np.zeros((3, 248))
    counts[2] = 3.0
    windows, records = made(np.full((3, 248), 1.0), counts, 240)
    expected = decide_at(live_at(job, windows, records, 0, {})).expected
    outcome = replayed(MeanField(), job, windows, records=records)
    assert expected.cost_usd == pytest.approx(outcome.total_cost_usd, rel=0.1)
    assert expected.paths == 60
    assert expected.cost_p10_usd <= expected.cost_usd + 1e-9


def test_markets_on_other_slots_are_refused():
    job = make_multi_job(a_job(d=6, n_max=2), 2, home=0)
    early, late = (
        make_history(1.0, 2, slots=slots, start=START, step=STEP, market=Market.parse(f"p/r/{zone}/t"))
        for zone, slots in (("a", 2), ("b", 3))
    )
    with pytest.raises(JobError, match="grids"):
        live_job(job, START, [early, late], decided={})


def test_it_says_that_a_deadline_is_let_go():
    """Without spot, on-demand costs more than the job's remaining value (M4): no instances run, and the late
    probability shows it.
    """
    job = a_job(d=8, n_max=3, load=0.6)
    windows, records = made(np.full((3, 48), 1.0), np.zeros((3, 48)), 40)
    poor = live_at(make_multi_job(replace(job, value=0.2 * job.value), home=0), windows, records, 3, {})
    decision = decide_at(poor)
    assert decision.allocation.total == 0
    assert LETS_GO in decision.reason
    assert decision.expected.late_probability > 0.5
    rich = decide_at(live_at(make_multi_job(job, home=0), windows, records, 3, {}))
    assert rich.allocation.total == 3
    assert LETS_GO not in rich.reason


@pytest.mark.parametrize("policy", [MeanField(), GreedySpot()], ids=lambda policy: policy.name)
@pytest.mark.parametrize("elsewhere", [3.0, 0.0])
def test_the_standby_of_a_lost_market_is_spot_of_another_market_that_has_some(policy, elsewhere):
    times = InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0)
    job = make_multi_job(replace(a_job(d=8, n_max=3, load=0.6), times=times), home=1, usd=0.0)
    counts = np.zeros((3, 48))
    counts[1], counts[2] = 3.0, elsewhere
    prices = np.full((3, 48), 1.0)
    prices[2] = 1.2
    windows, records = made(prices, counts, 40)
    decision = decide(live_at(job, windows, records, 0, {}), policy, EFFORT)
    assert placement(decision.market, decision.allocation) == Placement(1, Allocation(0, 3))
    assert (decision.standby.spot > 0) == (elsewhere > 0.0)
    assert not elsewhere or decision.standby_market == 2
