"""Replays of policies in the world: what a policy sees, when it decides, and that no guarded job is late (M12.10)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from forms_kit import quick_first
from make import make_job, make_record, make_window

from slackwater.optimization.job.definition import Allocation, Amdahl, InstanceTimes, Job, Linear
from slackwater.optimization.market.window import MarketWindow, Record
from slackwater.optimization.policies.contract import View
from slackwater.optimization.policies.pool import load_pool, policy_named
from slackwater.optimization.replay.run import Case, replay
from slackwater.optimization.world.readings import market_readings, readings_inside
from slackwater.optimization.world.replay import Launcher, WorldCase, decision_times, replay_in_world
from slackwater.optimization.world.simulation import Readings
from slackwater.warehouse.errors import MarketError

HALF_HOUR = 1800.0


def world_case(job: Job, window: MarketWindow, within: np.ndarray | None = None, **times: float) -> WorldCase:
    """Return a case whose instances take no time, but for ``times``."""
    known = InstanceTimes(**{"boot": 0.0, "restart": 0.0, "checkpoint": 0.0, **times})
    return WorldCase.of(Case(job=replace(job, times=known), window=window), market_readings(window, within))


class Watching:
    """Policy that takes all spot and keeps the views and states of its decisions, for tests."""

    name = "watching"

    def __init__(self) -> None:
        self.views: list[View] = []
        self.states: list[int] = []

    def start(self, job: Job) -> int:
        return 0

    def decide(self, state: int, view: View) -> tuple[Allocation, int]:
        self.views.append(view)
        self.states.append(state)
        return Allocation(0, min(view.available, view.job.n_max)), state + 1


# ---
# Readings and the times of decisions.


def test_readings_are_the_slots_and_the_counts_between_them_and_a_gap_has_no_spot():
    window = make_window([0.5, np.nan, 0.4], [4, 4, 2], slot_hours=0.5)
    found = market_readings(window, np.array([[3, np.nan], [4, 4], [1, 0]]))
    assert found.times.tolist() == [0.0, 600.0, 1800.0, 2400.0, 3000.0, 3600.0, 4200.0, 4800.0]
    assert found.available.tolist() == [4, 3, 0, 0, 0, 2, 1, 0]
    assert found.price.tolist() == [0.5, 0.5, 1.0, 1.0, 1.0, 0.4, 0.4, 0.4]
    assert market_readings(window).times.tolist() == [0.0, 1800.0, 3600.0]


def test_readings_of_other_slots_are_refused():
    with pytest.raises(MarketError, match=r"shape \(2, 1\) in 3 slots"):
        market_readings(make_window(slots=3), np.zeros((2, 1)))


def test_readings_inside_a_slot_are_those_before_the_next():
    within = np.arange(8.0).reshape(4, 2)
    assert readings_inside(within, 1, 2).tolist() == [[4.0, 5.0], [6.0, 7.0]]
    last = readings_inside(within, 2, 2)
    assert last[0].tolist() == [6.0, 7.0]
    assert np.isnan(last[1]).all()
    assert readings_inside(None, 1, 2) is None


def test_a_launcher_decides_at_slots_or_at_readings_too():
    readings = Readings(
        times=np.array([0.0, 600.0, 1800.0, 2000.0, 3600.0]), available=np.ones(5), price=np.ones(5)
    )
    slots = list(decision_times(Launcher.SLOTS, 2, HALF_HOUR, [readings]))
    assert slots == [(0.0, 0, 1800.0), (1800.0, 1, 3600.0)]
    reacts = list(decision_times(Launcher.READINGS, 2, HALF_HOUR, [readings]))
    assert reacts == [(0.0, 0, 600.0), (600.0, 0, 1800.0), (1800.0, 1, 2000.0), (2000.0, 1, 3600.0)]


# ---
# The replay.


def test_without_losses_and_times_the_world_is_the_slot_model():
    """Policies of the pool decide alike in both, and pay alike up to the finish."""
    rng = np.random.default_rng(3)
    policies = [policy_named(n) for n in ("OD-only", "MSU-trim", "UP", "AHANP(0.7)", "Stochastic(24)")]
    for seed in range(8):
        job = make_job(workload=float(rng.integers(10, 60)), deadline_slots=12, must_finish=True)
        counts = np.clip(4 + rng.integers(-2, 3, 12).cumsum(), 0, 8)
        window = make_window(rng.uniform(0.2, 0.9, 12), counts)
        for policy in policies:
            slots = replay(policy, job, window)
            (world,) = replay_in_world(
                [policy], world_case(job, window), launcher=Launcher.SLOTS, guard=False
            )
            assert world.allocations == slots.allocations, (seed, policy.name)
            assert (world.on_time, world.finish_slots) == (slots.on_time, slots.finish_slots)
            last = slots.allocations[-1]
            most = last.on_demand + last.spot * window.price[len(slots.allocations) - 1]
            assert slots.cost_usd - most - 1e-9 <= world.cost_usd <= slots.cost_usd + 1e-9
            assert world.spot_usd + world.on_demand_usd == pytest.approx(world.total_cost_usd)


def test_a_loss_inside_a_slot_by_hand():
    """Two spot instances; at 600 s one is lost, 200 s after its checkpoint; it is back at 1800 s."""
    job = make_job(workload=4.0, deadline_slots=8, n_max=2, throughput=Linear())
    window = make_window(0.5, 2, slots=8, slot_hours=0.5)
    within = np.full((8, 2), 2.0)
    within[0] = 1, 1
    case = world_case(job, window, within, checkpoint=400.0)
    outcome = replay_in_world([policy_named("MSU")], case)[0]
    # 800 instance-seconds saved by 400 s, 400 lost; one instance from 600 to 1800 s, then two.
    assert outcome.lost_instances == 1
    assert outcome.lost_work == pytest.approx(400 / 3600)
    finish = 1800 + (4 * 3600 - 800 - 1200) / 2
    assert outcome.finish == pytest.approx(finish)
    assert outcome.restarts == 3
    seconds = 2 * 600 + 1200 + 2 * (finish - 1800)
    assert outcome.spot_hours == pytest.approx(seconds / 3600)
    assert outcome.cost_usd == pytest.approx(0.5 * seconds / 3600)
    assert outcome.spot_share == 1.0
    assert outcome.on_time
    assert outcome.finished_slot == 5


def test_a_policy_sees_the_newest_reading_and_the_work_of_the_world():
    job = make_job(workload=40.0, deadline_slots=3)
    window = make_window([0.5, 0.6, 0.7], [4, 3, 2], slot_hours=0.5)
    within = np.array([[1.0, 2.0], [3.0, 3.0], [2.0, 2.0]])
    watching = Watching()
    replay_in_world([watching], world_case(job, window, within), guard=False)
    seen = [(v.slot, v.available, v.price, round(v.elapsed_hours, 6)) for v in watching.views[:5]]
    assert seen == [
        (0, 4, 0.5, 0.0),
        (0, 1, 0.5, 0.166667),
        (0, 2, 0.5, 0.333333),
        (1, 3, 0.6, 0.0),
        (1, 3, 0.6, 0.166667),
    ]
    assert watching.views[1].progress.done == pytest.approx(4 / 6)
    assert watching.views[1].progress.n_previous == 1
    assert watching.views[1].hours_left == pytest.approx(1.5 - 1 / 6)
    assert watching.views[1].progress.cost_usd == pytest.approx(4 * 0.5 / 6)
    # Each decision of a slot starts from the state before the slot.
    assert watching.states == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_no_decision_sees_a_later_reading():
    rng = np.random.default_rng(5)
    job = make_job(workload=30.0, deadline_slots=10)
    window = make_window(0.5, rng.integers(0, 9, 10), slot_hours=0.5)
    within = rng.integers(0, 9, (10, 2)).astype(float)
    policies = [policy_named(n) for n in ("UP", "Stochastic(24)", "AHAP(3,1,0.7)")]
    before = replay_in_world(policies, world_case(job, window, within))
    later = within.copy()
    later[6:] = rng.integers(0, 9, (4, 2))
    counts = window.available.copy()
    counts[7:] = rng.integers(0, 9, 3)
    after = replay_in_world(policies, world_case(job, replace(window, available=counts), later))
    for first, second in zip(before, after, strict=True):
        assert first.allocations[:7] == second.allocations[:7]


def test_a_job_that_cannot_be_in_time_goes_on_on_demand_until_it_is_done():
    job = make_job(workload=10.0, deadline_slots=2, n_max=4, must_finish=True, value=1000.0, gamma=5.0)
    case = world_case(job, make_window(0.5, 0, slots=2), boot=120.0, restart=240.0)
    (outcome,) = replay_in_world([policy_named("UP")], case)
    assert not outcome.on_time
    assert outcome.finish > 2 * 3600.0
    assert outcome.termination_cost_usd > 0.0
    assert outcome.on_demand_hours == pytest.approx(outcome.on_demand_usd)
    assert outcome.finish_slots == 3
    given_up = replace(job, must_finish=False, value=0.01)
    case = world_case(given_up, make_window(0.5, 0, slots=2))
    (outcome,) = replay_in_world([policy_named("Stochastic(24)")], case)
    assert (outcome.finish, outcome.finish_slots, outcome.value_usd) == (None, None, 0.0)


def test_the_guard_saves_a_deadline_that_the_slot_model_misses():
    """Spot is lost right after a slot's start: the net of the slot model counts on the whole slot."""
    job = make_job(workload=4 * 5.5, deadline_slots=12, n_max=4, mu_up=0.8, mu_down=0.87, must_finish=True)
    window = make_window(0.25, [4] * 12, slot_hours=0.5)
    within = np.zeros((12, 2))
    case = world_case(job, window, within, boot=120.0, restart=240.0, checkpoint=600.0)
    for launcher in Launcher:
        (bare,) = replay_in_world([policy_named("MSU-trim")], case, launcher=launcher, guard=False)
        (kept,) = replay_in_world([policy_named("MSU-trim")], case, launcher=launcher)
        assert not bare.on_time
        assert kept.on_time


# ---
# No job is late under any policy.


@dataclass(frozen=True)
class Mixing:
    """Hostile policy that mixes on-demand and spot at random, by a draw for each decision."""

    seed: int
    name: str = "mixing"

    def start(self, job: Job) -> int:
        return 0

    def decide(self, state: int, view: View) -> tuple[Allocation, int]:
        drawn = np.random.default_rng([self.seed, view.slot, round(view.elapsed_hours * 3600)])
        job = view.job
        if drawn.random() < 0.2 or job.n_min > job.n_max:
            return Allocation(0, 0), state
        n = int(drawn.integers(job.n_min, job.n_max + 1))
        spot = min(int(drawn.integers(0, n + 1)), view.available)
        return Allocation(n - spot, spot), state


def hostile_case(rng: np.random.Generator) -> WorldCase:
    """Return a job whose start just satisfies the guard, or with random slack, on a market that takes spot at bad moments."""
    n_min = int(rng.integers(1, 3))
    n_max = n_min + int(rng.integers(0, 4))
    slots = int(rng.integers(3, 13))
    boot, restart = float(rng.choice([0.0, 120.0, 400.0])), float(rng.choice([0.0, 240.0, 1500.0]))
    wait = float(rng.choice([0.0, 0.0, 900.0]))
    throughput = Linear() if rng.random() < 0.5 else Amdahl(parallel=0.95)
    slack = float(rng.choice([0.0, rng.uniform(0.0, 0.6)]))
    hours = (slots * HALF_HOUR - boot - restart - wait) / 3600.0
    job = make_job(
        workload=max(1e-3, hours * (1.0 - slack)) * throughput.rate(n_max),
        deadline_slots=slots,
        n_min=n_min,
        n_max=n_max,
        throughput=throughput,
        mu_up=1.0 - (boot + restart + wait) / HALF_HOUR,
        mu_down=1.0 - restart / HALF_HOUR,
        must_finish=True,
        value=1e4,
    )
    counts = rng.choice([0, 1, n_max, n_max + 2], (slots, 4), p=[0.3, 0.1, 0.5, 0.1]).astype(float)
    counts[rng.random((slots, 4)) < 0.1] = np.nan
    window = make_window(rng.uniform(0.1, 1.1, slots), counts[:, 0], slot_hours=0.5)
    readings = market_readings(window, counts[:, 1:])
    if rng.random() < 0.5:  # losses a second after the decisions
        times = np.unique(np.concatenate([readings.times, np.arange(slots) * HALF_HOUR + 1.0]))
        drawn = rng.choice([0, n_max], len(times), p=[0.5, 0.5])
        readings = Readings(times=times, available=drawn, price=np.full(len(times), 0.5))
    times = InstanceTimes(
        boot=boot, restart=restart, on_demand_wait=wait, checkpoint=float(rng.choice([0.0, 600.0, 3600.0]))
    )
    record = hostile_record(rng, window, n_max)
    case = Case(job=replace(job, times=times), window=window, record=record)
    return WorldCase.of(case, readings)


def hostile_record(rng: np.random.Generator, window: MarketWindow, n_max: int) -> Record:
    price = np.concatenate([rng.uniform(0.1, 1.0, 12), window.price])
    counts = np.concatenate([rng.integers(0, n_max + 1, 12), window.available]).astype(float)
    return make_record(price, counts, first=12, slot_hours=0.5)


@pytest.mark.parametrize("launcher", quick_first([Launcher.READINGS, Launcher.SLOTS]))
def test_policies_replayed_together_have_the_outcomes_of_each_alone(launcher):
    """Members of a family run as one until their thresholds part them, also within a slot and twice."""
    pool = [policy for policy in load_pool() if getattr(policy, "omega", 2) == 2]
    job = make_job(workload=12.0, deadline_slots=12, n_max=4, mu_up=0.8, mu_down=0.9, value=1e3)
    distinct = set()
    for seed in range(3):
        rng = np.random.default_rng([31, seed])
        counts = rng.integers(0, 6, (12, 3)).astype(float)
        window = make_window(rng.uniform(0.2, 1.0, 12), counts[:, 0], slot_hours=0.5)
        case = world_case(job, window, counts[:, 1:], boot=120.0, restart=240.0, checkpoint=600.0)
        together = replay_in_world(pool, case, launcher=launcher)
        assert together == [replay_in_world([policy], case, launcher=launcher)[0] for policy in pool]
        distinct |= {(seed, replace(found, policy="")) for found in together if "AH" in found.policy}
    assert len(distinct) > 3 * 3, "no threshold parted the three families"


def late_jobs(seed: int, jobs: int) -> list[tuple[int, str, Launcher]]:
    """Return the late of ``jobs`` jobs, each under a policy of the pool or a mixing policy, in turn."""
    pool = load_pool()
    late = []
    for i in range(jobs):
        rng = np.random.default_rng([seed, i])
        case = hostile_case(rng)
        launcher = Launcher.READINGS if rng.random() < 0.5 else Launcher.SLOTS
        policy = Mixing(i) if i % 3 == 0 else pool[i % len(pool)]
        (outcome,) = replay_in_world([policy], case, launcher=launcher)
        if not outcome.on_time:
            late.append((i, policy.name, launcher))
    return late


def test_no_job_of_150_is_late_under_any_policy_of_the_pool():
    assert late_jobs(1, 150) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 12))
def test_no_job_of_20_000_is_late_under_any_policy_of_the_pool(seed):
    assert late_jobs(seed, 2_000) == []


def test_the_hostile_jobs_are_late_without_the_guard():
    late = 0
    for i in range(200):
        case = hostile_case(np.random.default_rng([1, i]))
        (outcome,) = replay_in_world([policy_named("MSU-trim")], case, guard=False)
        late += not outcome.on_time
    assert late > 60
