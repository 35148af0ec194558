"""UP-single by the paper's rules, with changeovers in hours that may exceed a slot (M4.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from make import make_job, make_view, make_window

from slackwater.optimization import Allocation, Job, Progress, View
from slackwater.optimization.job.definition import Linear, RateTable
from slackwater.optimization.policies.pool import expand, policy_named
from slackwater.optimization.policies.stochastic import Stochastic
from slackwater.optimization.replay.run import replay
from slackwater.studies.policies.single_cluster import Holding, SingleCluster, cluster_size
from slackwater.warehouse.errors import SettingsError

JOB = make_job(deadline_slots=20, n_max=4)


def view(job: Job = JOB, **changes: Any) -> View:
    base = make_view(job)
    progress = {key: changes.pop(key) for key in ("done", "n_previous") if key in changes}
    return replace(base, progress=Progress(**progress), **changes)


def after(policy: SingleCluster, state: Holding, seen: View) -> tuple[Allocation, Holding]:
    return policy.decide(state, seen)


UP = SingleCluster()
SPOT, ON_DEMAND, NOTHING = Allocation(0, 4), Allocation(4, 0), Allocation(0, 0)


def test_all_or_nothing():
    assert after(UP, Holding.NOTHING, view()) == (SPOT, Holding.SPOT)
    assert after(UP, Holding.NOTHING, view(available=3)) == (NOTHING, Holding.NOTHING)
    assert after(UP, Holding.NOTHING, view(price=1.0)) == (NOTHING, Holding.NOTHING)
    assert after(UP, Holding.NOTHING, view(slot=3, done=4.0, available=3)) == (ON_DEMAND, Holding.ON_DEMAND)


def test_exploitation_stays_on_spot_even_behind_and_short_of_time():
    # 10 slots of work in 11: no start is safe with a changeover of 1, but spot is already running
    slow = SingleCluster(changeover_hours=1.0)
    assert after(slow, Holding.SPOT, view(slot=9, n_previous=4)) == (SPOT, Holding.SPOT)
    assert after(slow, Holding.NOTHING, view(slot=9)) == (ON_DEMAND, Holding.TO_THE_END)
    assert after(slow, Holding.SPOT, view(slot=9, available=3, n_previous=4)) == (
        ON_DEMAND,
        Holding.TO_THE_END,
    )


def test_the_end_is_not_left_for_spot():
    slow = SingleCluster(changeover_hours=1.0)
    assert after(slow, Holding.TO_THE_END, view(slot=12, done=16.0)) == (ON_DEMAND, Holding.TO_THE_END)


@pytest.mark.parametrize(("hours", "slot_hours"), [(0.5, 1.0), (3.0, 1.0), (0.3, 0.1)])
def test_on_demand_is_left_two_changeovers_ahead(hours, slot_hours):
    job = replace(
        JOB, throughput=Linear(alpha=1.0 / slot_hours), deadline_slots=40
    )  # 4 work a slot, the line 1 a slot
    policy = SingleCluster(changeover_hours=hours)
    lead = 2 * hours / slot_hours
    seen = view(job, slot=3, slot_hours=slot_hours, n_previous=4)
    short = replace(seen, progress=Progress(done=3.0 + lead - 0.01, n_previous=4))
    enough = replace(seen, progress=Progress(done=3.0 + lead + 0.01, n_previous=4))
    assert after(policy, Holding.ON_DEMAND, short) == (ON_DEMAND, Holding.ON_DEMAND)
    assert after(policy, Holding.ON_DEMAND, enough) == (SPOT, Holding.SPOT)
    assert "two changeovers ahead" in policy.explain(Holding.ON_DEMAND, short, ON_DEMAND)


def test_on_demand_is_never_left_for_nothing():
    far = view(slot=3, done=30.0, n_previous=4)  # 15 slots ahead
    assert after(UP, Holding.ON_DEMAND, far) == (SPOT, Holding.SPOT)
    for seen in (
        replace(far, available=3),
        replace(far, price=1.0),
        replace(far, available=0, observed=False, price=1.0),
    ):
        assert after(UP, Holding.ON_DEMAND, seen) == (ON_DEMAND, Holding.ON_DEMAND)
        assert after(UP, Holding.NOTHING, seen) == after(UP, Holding.SPOT, seen) == (NOTHING, Holding.NOTHING)
    assert "from on-demand only to spot" in UP.explain(
        Holding.ON_DEMAND, replace(far, available=0), ON_DEMAND
    )


def test_the_net_keeps_two_changeovers():
    # R - 1 < C + 2 delta: with 10 slots of work and delta = 1.5 the last idle slot has R = 14
    policy = SingleCluster(changeover_hours=1.5)
    held = {
        slot: after(policy, Holding.NOTHING, view(slot=slot, done=0.0, available=0))[1] for slot in (6, 7)
    }
    assert held == {
        6: Holding.ON_DEMAND,
        7: Holding.TO_THE_END,
    }  # already behind at 6, but not yet at the end
    none = SingleCluster(changeover_hours=0.0)
    assert after(none, Holding.NOTHING, view(slot=9, available=0))[1] is Holding.ON_DEMAND
    assert after(none, Holding.NOTHING, view(slot=10, available=0))[1] is Holding.TO_THE_END
    assert "less than two changeovers remain" in policy.explain(
        Holding.NOTHING, view(slot=7, available=0), ON_DEMAND
    )


def test_without_a_time_the_changeover_is_the_jobs():
    job = replace(JOB, mu_up=-1.5)  # 2.5 slots
    for done in np.linspace(-5, 30, 30):
        for slot in range(0, 18, 3):
            for state in Holding:
                seen = view(
                    job, slot=slot, done=float(done), n_previous=4 if state is not Holding.NOTHING else 0
                )
                assert after(UP, state, seen) == after(SingleCluster(changeover_hours=2.5), state, seen)


def test_a_gap_begins_nothing_until_the_net_calls():
    gap = view(available=0, observed=False, price=1.0, slot=4, done=6.0, n_previous=4)
    assert after(UP, Holding.NOTHING, gap) == (NOTHING, Holding.NOTHING)  # although behind
    assert after(UP, Holding.ON_DEMAND, gap) == (ON_DEMAND, Holding.ON_DEMAND)
    assert after(UP, Holding.SPOT, replace(gap, slot=13)) == (ON_DEMAND, Holding.TO_THE_END)


def test_the_guard_leaves_a_slot_and_a_restart():
    # 10 slots of work in 20, a restart of half a slot: 19 - t - 10 >= 1.5 up to t = 7; with running spot 20 - t
    # - 0.5 - 10 >= 1.5 up to t = 8, which Stochastic does not use.
    job = replace(JOB, mu_up=0.5, n_min=4)
    cases = (
        (SingleCluster(guard=True), Holding.NOTHING, 0, 7),
        (SingleCluster(guard=True), Holding.SPOT, 4, 8),
        (Stochastic(guard=True), None, 0, 7),
        (Stochastic(guard=True), None, 4, 7),
    )
    for policy, state, before, last in cases:
        ahead = view(job, slot=last, n_previous=before)
        late = replace(ahead, slot=last + 1)
        assert policy.decide(state, ahead)[0] == SPOT
        assert policy.decide(state, late)[0] == ON_DEMAND
        assert policy.decide(state, replace(late, available=0))[0] == ON_DEMAND
        more = replace(late, progress=Progress(done=4.0, n_previous=before))
        assert policy.decide(state, more)[0] == SPOT
    assert UP.decide(Holding.SPOT, view(job, slot=8, n_previous=4))[0] == SPOT
    free = replace(job, n_min=1)  # the guard ignores jobs that may run fewer instances
    assert Stochastic(guard=True).decide(None, view(free, slot=8, n_previous=4))[0].on_demand == 0


def test_the_cluster_is_the_fastest_size():
    job = replace(JOB, throughput=RateTable(rates=(1.0, 2.2, 4.0, 3.0)))
    assert cluster_size(view(job)) == 3
    assert after(UP, Holding.NOTHING, view(job, available=3)) == (Allocation(0, 3), Holding.SPOT)


@pytest.mark.parametrize("seed", range(5))
def test_runs_hold_none_or_all_and_never_both(seed):
    rng = np.random.default_rng(seed)
    job = replace(JOB, mu_up=(0.9, 0.2, -1.0, -2.5, 1.0)[seed], workload=24.0)
    count = np.where(rng.random(20).cumsum() % 2 < 1, 4, rng.integers(0, 4, 20))
    outcome = replay(UP, job, make_window([0.4] * 20, count))
    assert outcome.on_time
    assert all(a.on_demand == 0 or a.spot == 0 for a in outcome.allocations)
    assert all(a.total in (0, 4) for a in outcome.allocations[:-1])


def test_names():
    assert UP.name == "UP-single"
    assert policy_named("UP-single") == UP
    assert policy_named("UP-single(0.2)") == SingleCluster(changeover_hours=0.2)
    assert policy_named("UP-single(0.2)").name == "UP-single(0.2)"
    assert [p.name for p in expand({"name": "UP-single", "changeover_hours": [0, 1.5]})] == [
        "UP-single(0)",
        "UP-single(1.5)",
    ]
    assert policy_named("UP-single(guard)") == SingleCluster(guard=True)
    assert policy_named("UP-single(0.2,guard)").name == "UP-single(0.2,guard)"
    assert policy_named("Stochastic(24,guard)") == policy_named("Stochastic(guard)") == Stochastic(guard=True)
    assert policy_named("Stochastic(24,guard)").name == "Stochastic(24,guard)"
    for wrong_name in ("UP-single(guard,0.2)", "Stochastic(careful)", "MSU(guard)"):
        with pytest.raises(SettingsError, match="policy"):
            policy_named(wrong_name)
    for wrong in (-1.0, float("inf"), float("nan")):
        with pytest.raises(SettingsError, match="changeover"):
            SingleCluster(changeover_hours=wrong)
