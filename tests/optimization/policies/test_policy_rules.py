"""The rules of each policy on cases small enough to compute by hand (M4.1-M4.5)."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from make import make_job, make_view, make_window

from slackwater.optimization import (
    Allocation,
    EndRule,
    HorizonProblem,
    Job,
    Plan,
    PlanStatus,
    PointForecast,
    Progress,
    View,
)
from slackwater.optimization.job.definition import RateTable, on_demand_to_go
from slackwater.optimization.policies.baselines import MaximalSpot, OnDemandOnly, UniformProgress
from slackwater.optimization.policies.committed_horizon import Ahap, Commitments
from slackwater.optimization.policies.pace import spot_text
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.policies.reactive import Ahanp
from slackwater.optimization.replay.run import replay
from slackwater.warehouse.errors import SettingsError

JOB = make_job()


def view(job: Job = JOB, **changes: Any) -> View:
    base = make_view(job, available=8)
    progress = {key: changes.pop(key) for key in ("done", "n_previous") if key in changes}
    return replace(base, progress=Progress(**progress), **changes)


def answer(policy: Any, seen: View, state: Any = None) -> tuple[int, int]:
    state = policy.start(seen.job) if state is None else state
    held = policy.decide(state, seen)[0]
    return held.on_demand, held.spot


class TestOnDemandOnly:
    def test_the_least_constant_number_counts_mu_up_once(self):
        assert answer(OnDemandOnly(), view()) == (4, 0)
        assert answer(OnDemandOnly(), view(replace(JOB, mu_up=0.9))) == (5, 0)
        assert answer(OnDemandOnly(), view(replace(JOB, workload=39.6, mu_up=0.9))) == (4, 0)

    def test_it_is_the_least_by_trying_all(self):
        market = make_window(0.2, 8)
        for workload in np.linspace(1, 75, 38):
            job = replace(JOB, workload=float(workload), mu_up=0.6, n_min=2)
            fit = [n for n in range(2, 9) if (9 + 0.6) * n >= workload - 1e-9]
            outcome = replay(OnDemandOnly(), job, market)
            assert set(outcome.allocations) == {Allocation(fit[0], 0)}
            assert outcome.on_time

    def test_out_of_reach_it_holds_n_max_and_m26_ends_it(self):
        job = replace(JOB, workload=100.0, value=500.0)
        market = make_window(0.2, 8)
        outcome = replay(OnDemandOnly(), job, market)
        assert set(outcome.allocations) == {Allocation(8, 0)}
        ending = on_demand_to_go(job, done=80.0, n_previous=8, slot=10, on_demand_usd=1.0, slot_hours=1.0)
        assert outcome.finish_slots == 10 + ending.slots
        assert outcome.utility_usd == pytest.approx(ending.value_usd - 80.0)

    def test_the_fastest_size_need_not_be_n_max(self):
        job = replace(JOB, throughput=RateTable(rates=(1.0, 2.0, 5.0, 4.0)), n_max=4, workload=90.0)
        assert answer(OnDemandOnly(), view(job)) == (3, 0)

    def test_a_gap_changes_nothing(self):
        assert answer(OnDemandOnly(), view(observed=False, available=0, price=1.0)) == (4, 0)

    def test_one_slot(self):
        job = replace(JOB, deadline_slots=1, workload=5.0)
        assert answer(OnDemandOnly(), view(job)) == (5, 0)


class TestMaximalSpot:
    def test_all_spot_and_no_more(self):
        assert answer(MaximalSpot(), view(available=5)) == (0, 5)
        assert answer(MaximalSpot(), view(available=20)) == (0, 8)
        assert answer(MaximalSpot(), view(available=0)) == (0, 0)

    def test_less_than_n_min_is_nothing(self):
        assert answer(MaximalSpot(), view(replace(JOB, n_min=6), available=5)) == (0, 0)

    def test_dear_spot_is_left(self):
        assert answer(MaximalSpot(), view(price=1.0)) == (0, 0)
        assert answer(MaximalSpot(), view(price=1.2)) == (0, 0)

    def test_on_demand_at_the_last_moment_and_not_before(self):
        # 40 at 8 a slot: 5 slots. With 6 left the job may wait one slot, with 5 none.
        assert answer(MaximalSpot(), view(slot=4, available=0)) == (0, 0)
        assert answer(MaximalSpot(), view(slot=5, available=0)) == (8, 0)
        assert answer(MaximalSpot(), view(slot=5, available=3)) == (5, 3)
        assert answer(MaximalSpot(), view(slot=5, available=3, price=1.1)) == (8, 0)

    def test_the_last_moment_counts_the_changeover(self):
        job = replace(JOB, mu_up=0.9)
        assert answer(MaximalSpot(), view(job, slot=4, available=0)) == (8, 0)
        assert answer(MaximalSpot(), view(job, slot=4, available=8)) == (0, 8)
        # 7 spot now leave 40 - 0.9 x 7 = 33.7 for 5 slots at 8, the first at 0.9: 39.2
        assert answer(MaximalSpot(), view(job, slot=4, available=7)) == (0, 7)

    def test_as_published_it_holds_all_to_the_end(self):
        assert answer(MaximalSpot(), view(done=37.5, n_previous=3)) == (0, 8)
        assert answer(MaximalSpot(), view(done=37.5, n_previous=3, slot=9, available=1)) == (7, 1)

    def test_trimmed_it_holds_what_finishes(self):
        sharp = MaximalSpot(trim=True)
        assert sharp.name == "MSU-trim"
        assert answer(sharp, view(done=37.5, n_previous=3)) == (0, 3)
        assert answer(sharp, view(done=37.5, n_previous=3, slot=9, available=1)) == (2, 1)


class TestUniformProgress:
    def test_on_schedule_spot_only(self):
        assert answer(UniformProgress(), view(available=2)) == (0, 2)
        assert answer(UniformProgress(), view(available=0)) == (0, 0)
        assert answer(UniformProgress(), view(slot=3, done=12.0, available=0)) == (0, 0)

    def test_behind_tops_up_to_the_line(self):
        # line 4 a slot: at slot 3 with 10 done, 16 is due after it
        assert answer(UniformProgress(), view(slot=3, done=10.0, available=0)) == (6, 0)
        assert answer(UniformProgress(), view(slot=3, done=10.0, available=4)) == (2, 4)
        assert answer(UniformProgress(), view(slot=3, done=10.0, available=7)) == (0, 7)
        assert answer(UniformProgress(), view(slot=3, done=10.0, available=4, price=1.0)) == (6, 0)

    def test_on_demand_is_left_two_changeovers_ahead(self):
        job = replace(JOB, mu_up=0.8)  # two changeovers: 0.4 slots, 1.6 work units
        ahead = view(job, slot=3, done=13.5, n_previous=5, available=0)
        assert answer(UniformProgress(), ahead, state=0) == (0, 0)
        assert answer(UniformProgress(), ahead, state=5) == (5, 0)  # 17.6 is due after the slot
        assert answer(UniformProgress(), replace(ahead, available=1), state=5) == (4, 1)
        enough = replace(ahead, available=1, progress=Progress(done=13.61, n_previous=5))
        assert answer(UniformProgress(), enough, state=5) == (0, 1)

    def test_on_demand_is_never_left_for_nothing(self):
        far = view(slot=3, done=30.0, n_previous=6, available=0)  # the line is 12
        assert answer(UniformProgress(), far, state=0) == (0, 0)
        assert answer(UniformProgress(), far, state=6) == (6, 0)
        assert answer(UniformProgress(), replace(far, observed=False, price=1.0), state=6) == (6, 0)
        assert answer(UniformProgress(), replace(far, available=8, price=1.0), state=6) == (6, 0)
        assert answer(UniformProgress(), replace(far, available=2), state=6) == (0, 2)
        # Two on-demand and four spot, which are gone: on-demand falls no lower than n_min and is limited
        # to the size that finishes the job.
        assert answer(UniformProgress(), replace(far, job=replace(JOB, n_min=4)), state=2) == (4, 0)
        assert answer(UniformProgress(), replace(far, progress=Progress(done=37.5, n_previous=6)), 6) == (
            3,
            0,
        )
        assert "from on-demand only to spot" in UniformProgress().explain(6, far, Allocation(6, 0))

    def test_the_state_is_how_many_were_held_on_demand(self):
        policy = UniformProgress()
        assert policy.decide(0, view(slot=3, done=10.0, available=0))[1] == 6
        assert policy.decide(6, view(slot=3, done=20.0, available=8))[1] == 0

    def test_a_run_worked_out_by_hand(self):
        # 40 units in 10 slots, at most 8; two changeovers are 0.4 slots. Spot: none, none, none, none, 3, 3, none ...
        job = replace(JOB, mu_up=0.8)
        count = [0, 0, 0, 0, 3, 3, 0, 0, 0, 0]
        market = make_window([0.25] * 10, count)
        held = replay(UniformProgress(), job, market).allocations
        # 0: on the line, nothing. 1: 0 < 4, 8 are due: all 8, at 0.8, do only 6.4.
        # 2: 6.4 < 9.6 (the line at 2.4), 13.6 are due: 8 make 14.4. 3: 14.4 >= 13.6 but no spot: 8 stay,
        # 22.4.
        # 4: 22.4 >= 17.6 and spot: its 3 instances, 25.4. 5: 28.4. 6: 28.4 >= 24, no spot left, no
        # on-demand running: nothing.
        # 7: 28.4 >= 28: nothing, as 11.6 more fit into two slots of 8, the first at 0.8 (14.4).
        # 8: 28.4 < 32, 36 are due: 8 make 6.4, and the net requests as many: 34.8. 9: 5.2 are left: 6.
        assert [(a.on_demand, a.spot) for a in held] == [
            (0, 0), (8, 0), (8, 0), (8, 0), (0, 3), (0, 3), (0, 0), (0, 0), (8, 0), (6, 0),
        ]  # fmt: skip

    def test_safety_net_as_in_msu(self):
        assert answer(UniformProgress(), view(slot=5, available=3)) == (5, 3)


class TestAhanp:
    def test_ahead_spot_only_below_the_threshold(self):
        assert answer(Ahanp(sigma=0.5), view(price=0.5)) == (0, 8)
        assert answer(Ahanp(sigma=0.5), view(price=0.51)) == (0, 0)
        assert answer(Ahanp(sigma=0.5), view(price=0.5, available=0)) == (0, 0)

    def test_behind_the_least_that_catches_up(self):
        late = view(slot=3, done=10.0)
        assert answer(Ahanp(sigma=0.3), replace(late, available=4)) == (2, 4)
        assert answer(Ahanp(sigma=0.3), replace(late, available=8)) == (0, 6)
        assert answer(Ahanp(sigma=0.5), replace(late, available=8)) == (0, 8)
        assert answer(Ahanp(sigma=0.3), replace(late, available=8, price=1.3)) == (6, 0)

    def test_a_change_of_one_is_not_made_on_schedule(self):
        job = replace(JOB, mu_up=0.9)
        policy = Ahanp(sigma=0.9)
        assert answer(policy, view(job, available=6, n_previous=5)) == (0, 5)
        assert answer(policy, view(job, available=6, n_previous=4)) == (0, 6)
        # behind, 5 catch up; 6 were running, so one on-demand keeps the size
        assert answer(policy, view(job, slot=3, done=11.0, available=5, n_previous=6)) == (1, 5)
        # ahead, 6 were running, 5 are available: spot only, so the size is not kept
        assert answer(policy, view(job, slot=3, done=20.0, available=5, n_previous=6)) == (0, 5)
        # 3 running, 4 requested: 3 would fall behind the line
        assert answer(policy, view(job, available=4, n_previous=3)) == (0, 4)

    def test_threshold_must_be_a_share(self):
        for sigma in (0.0, 1.1, float("nan")):
            with pytest.raises(SettingsError, match="sigma"):
                Ahanp(sigma=sigma)


def scripted(*plans: list[tuple[int, int]]) -> Any:
    """Return a solver that returns the plans in turn and records its problems."""
    asked: list[HorizonProblem] = []

    def solve(problem: HorizonProblem) -> Plan:
        asked.append(problem)
        allocations = tuple(Allocation(*pair) for pair in plans[len(asked) - 1])
        return Plan(
            allocations=allocations, status=PlanStatus.OPTIMAL, objective=0.0, bound=0.0, gap=0.0, seconds=0.0,
            cost_usd=0.0, end_progress=0.0,
        )  # fmt: skip

    solve.asked = asked  # type: ignore[attr-defined]
    return solve


class TestAhap:
    def test_what_it_asks(self):
        solve = scripted([(0, 3)] * 3)
        forecast = PointForecast(price=np.array([0.7, 0.8]), available=np.array([3, 2]))
        policy = Ahap(omega=3, commitment=1, sigma=0.9, end_rule=EndRule.TARGET, solve=solve)
        assert answer(policy, view(available=5, done=2.0, n_previous=1, slot=1, forecast=forecast)) == (0, 3)
        problem = solve.asked[0]
        assert (problem.slot, problem.done, problem.n_previous, problem.end_rule) == (
            1,
            2.0,
            1,
            EndRule.TARGET,
        )
        assert problem.window.price.tolist() == [0.5, 0.7, 0.8]
        assert problem.window.available.tolist() == [5, 3, 2]

    def test_without_a_forecast_the_present_is_held(self):
        solve = scripted([(0, 3)] * 4)
        answer(Ahap(omega=4, commitment=1, sigma=0.9, solve=solve), view(available=3, price=0.4))
        assert solve.asked[0].window.price.tolist() == [0.4] * 4
        assert solve.asked[0].window.available.tolist() == [3] * 4

    def test_the_window_ends_at_the_deadline(self):
        solve = scripted([(8, 0)] * 2)
        answer(Ahap(omega=5, commitment=5, sigma=0.9, solve=solve), view(slot=8, done=25.0))
        assert len(solve.asked[0].window) == 2

    def test_the_action_is_the_rounded_mean_of_the_plans_that_cover_it(self):
        solve = scripted([(0, 2), (0, 6), (3, 4)], [(0, 3), (0, 5), (0, 0)], [(0, 4), (0, 0), (0, 0)])
        policy = Ahap(omega=3, commitment=3, sigma=0.9, solve=solve)
        state, done, got = policy.start(JOB), 0.0, []
        for slot in range(3):
            held, state = policy.decide(state, view(slot=slot, done=done, n_previous=2))
            got.append((held.on_demand, held.spot))
            done = 4.0 * (slot + 1)
        # 2 | (6 + 3) / 2 -> 5 | on-demand (3 + 0 + 0) / 3 = 1, spot (4 + 5 + 4) / 3 -> 4, on-demand gives way to spot
        assert got == [(0, 2), (0, 5), (0, 5)]
        assert [made for made, _ in state.plans] == [0, 1, 2]

    def test_commitment_one_listens_to_the_newest_plan_only(self):
        solve = scripted([(0, 2), (0, 6)], [(0, 3), (0, 5)])
        policy = Ahap(omega=2, commitment=1, sigma=0.9, solve=solve)
        state = policy.decide(policy.start(JOB), view())[1]
        held, state = policy.decide(state, view(slot=1, done=4.0))
        assert held == Allocation(0, 3)
        assert len(state.plans) == 1

    def test_what_is_not_there_is_not_held(self):
        policy = Ahap(omega=2, commitment=2, sigma=0.9, solve=scripted([(0, 0), (0, 0)]))
        state = Commitments(((0, (Allocation(0, 6), Allocation(1, 6))),))
        short = view(slot=1, done=4.0, available=2)
        assert answer(policy, short, state) == (1, 2)
        policy = Ahap(omega=2, commitment=2, sigma=0.9, solve=scripted([(0, 0), (0, 0)]))
        assert answer(policy, replace(short, price=1.1), state) == (1, 0)

    def test_behind_never_below_what_the_deadline_needs(self):
        late = view(slot=4, done=2.0, available=4)
        # 38 are left for 6 slots of at most 8: the first slot may stay idle, the next needs 6 instances.
        policy = Ahap(omega=3, commitment=1, sigma=0.9, solve=scripted([(0, 0)] * 3, [(0, 0)] * 3))
        assert answer(policy, replace(late, progress=Progress(done=0.5))) == (0, 0)
        assert answer(policy, replace(late, slot=5)) == (2, 4)  # 32 at most in the last four

    def test_far_ahead_spot_only_below_the_threshold(self):
        far = view(slot=2, done=20.0, available=6)  # the line at the window's end is 20
        policy = Ahap(omega=3, commitment=1, sigma=0.5, solve=scripted([(4, 4)] * 3, [(4, 4)] * 3))
        assert answer(policy, far) == (0, 6)
        assert answer(policy, replace(far, price=0.6)) == (0, 0)

    def test_the_far_ahead_are_those_at_the_line_of_the_windows_end_and_no_sooner(self):
        # Four units of work a slot: the line is 16 a slot before the window's end, 20 at it, 24 a slot
        # later.
        # Progress short of the line by a rounding error counts as on it.
        at_line = ((20.0 - 1e-12, (0, 6)), (20.0, (0, 6)), (23.9, (0, 6)))
        for done, held in ((16.0, (2, 6)), (19.9, (2, 6)), *at_line):
            policy = Ahap(omega=3, commitment=1, sigma=0.9, solve=scripted([(4, 4)] * 3))
            seen = view(slot=2, done=done, available=6)
            assert answer(policy, seen) == held, done
            assert ("far ahead" in policy.explain(policy.start(JOB), seen, Allocation(*held))) == (
                held == (0, 6)
            )

    def test_the_finishing_slot_is_trimmed(self):
        policy = Ahap(omega=1, commitment=1, sigma=0.9, solve=scripted([(0, 8)]))
        assert answer(policy, view(slot=8, done=35.0, available=8)) == (0, 5)

    def test_a_mean_below_n_min_is_nothing_or_n_min_on_spot(self):
        job = replace(JOB, n_min=4)
        state = Commitments(((0, (Allocation(0, 0), Allocation(0, 0))),))
        for there, held in ((8, (0, 4)), (3, (0, 0))):
            policy = Ahap(omega=2, commitment=2, sigma=0.9, solve=scripted([(0, 4), (0, 4)]))
            assert answer(policy, view(job, slot=1, done=4.0, available=there), state) == held

    @pytest.mark.parametrize(("omega", "v", "sigma"), [(3, 4, 0.5), (3, 0, 0.5), (0, 0, 0.5), (3, 1, 0.0)])
    def test_wrong_parameters_are_refused(self, omega, v, sigma):
        with pytest.raises(SettingsError, match="AHAP"):
            Ahap(omega=omega, commitment=v, sigma=sigma)

    def test_the_solver_is_no_part_of_its_identity(self):
        assert Ahap(omega=3, commitment=1, sigma=0.5) == Ahap(
            omega=3, commitment=1, sigma=0.5, solve=scripted()
        )


REASONS = [
    (MaximalSpot(), view(slot=3, available=0), "no instances: the job is 3.0 slots behind schedule, slack is 2 slots, and 0 of 8"),
    (MaximalSpot(), view(slot=5, available=0), "on-demand only: slack is 0 slots, and 0 of 8 spot instances are available"),
    (Ahanp(sigma=0.7), view(slot=2, done=13.2, price=0.31), "0.31 of on-demand, and the job is 1.3 slots ahead of schedule"),
    (Ahanp(sigma=0.7), view(price=0.31), "spot only: spot costs 0.31 of on-demand, and 10 slots are left to the deadline"),
    (Ahanp(sigma=0.7), view(slot=2, done=8.1, price=0.31), "spot only: spot costs 0.31 of on-demand, and the job is on schedule"),
    (OnDemandOnly(), view(), "4 is the smallest constant number that meets the deadline in 10 slots"),
    (MaximalSpot(), view(slot=8, available=2), "even the fastest on-demand allocation misses the deadline by 3 slots"),
    (UniformProgress(), view(slot=3, done=10.0, available=4), "2 on-demand and 4 spot: the job is 0.5 slots behind schedule, "),
]  # fmt: skip


@pytest.mark.parametrize(("policy", "seen", "text"), REASONS)
def test_reasons(policy, seen, text):
    state = policy.start(seen.job)
    assert text in policy.explain(state, seen, policy.decide(state, seen)[0])


@pytest.mark.parametrize("name", ["UP", "UP-single"])
@pytest.mark.parametrize("seed", range(4))
def test_uniform_progress_stays_on_demand_through_every_outage(name, seed):
    rng = np.random.default_rng(seed)
    job = replace(JOB, mu_up=(1.0, 0.9, 0.5, -0.5)[seed], mu_down=0.95, deadline_slots=30, workload=60.0)
    there = np.logical_xor.accumulate(rng.random(30) < 0.25)
    count = np.where(there, rng.integers(1, 12, 30), 0).astype(float)
    count[rng.random(30) < 0.1] = np.nan
    market = make_window([0.4] * 30, count)
    held = replay(policy_named(name), job, market).allocations
    left = [after for before, after in itertools.pairwise(held) if before.on_demand and not after.on_demand]
    assert all(after.spot for after in left)
    assert any(a.on_demand for a in held)


def test_a_count_that_nobody_saw_is_told_as_assumed():
    seen = view(slot=5, available=3)
    assert "spot instances are available at" in spot_text(seen)
    assert "spot instances are assumed to be available at" in spot_text(
        replace(seen, availability_observed=False)
    )
