"""Both kinds of commitment, the three end rules, and windows shared by replays (M3.3, M4.5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_view, make_window

from slackwater.optimization import Allocation, EndRule, HorizonProblem, PointForecast, Progress, View
from slackwater.optimization.job.definition import on_demand_to_go
from slackwater.optimization.policies.committed_horizon import Ahap, Commit
from slackwater.optimization.replay.run import PlanMemo, replay, see, with_shared_plans
from slackwater.optimization.replay.score import perfect_forecasts
from slackwater.optimization.window.plan import ExpectedToGo
from slackwater.optimization.window.twin import solve_window

JOB = make_job(mu_up=0.9)


def market(seed: int, slots: int = 10):
    rng = np.random.default_rng(seed)
    price = np.clip(0.5 + 0.1 * rng.normal(size=slots).cumsum(), 0.2, 1.1)
    price[rng.random(slots) < 0.1] = np.nan
    return make_window(price, rng.integers(0, 9, slots))


def view(**changes) -> View:
    base = make_view(JOB, available=8)
    return replace(base, **changes)


def recorded(asked: list[HorizonProblem]):
    def solve(problem: HorizonProblem):
        asked.append(problem)
        return solve_window(problem)

    return solve


class TestLast:
    def test_a_plan_is_followed_for_v_slots_and_then_made_anew(self):
        asked: list[HorizonProblem] = []
        window = make_window(0.5, [3, 4, 5, 3, 4, 5, 3, 4, 5, 3])
        policy = Ahap(omega=5, commitment=3, sigma=0.9, commit=Commit.LAST, solve=recorded(asked))
        replay(policy, replace(JOB, workload=50), window, forecasts=perfect_forecasts(window, 5))
        assert [problem.slot for problem in asked] == [0, 3, 6, 9]

    def test_the_state_is_the_plan_and_its_slot_says_what_is_held(self):
        policy = Ahap(omega=3, commitment=3, sigma=0.9, commit=Commit.LAST)
        plan = (Allocation(0, 4), Allocation(2, 4), Allocation(0, 6))
        state = policy.start(JOB)
        state = replace(state, plans=((2, plan),))
        on_line = Progress(done=16.0, n_previous=4)
        held, after = policy.decide(state, view(slot=3, progress=on_line, available=5))
        assert held == Allocation(1, 5)  # six as planned, spot first
        assert after == state
        held, _ = policy.decide(state, view(slot=3, progress=on_line, available=0))
        assert held == Allocation(2, 0)  # spot beyond the available count is not run
        pressed = Progress(done=0.0, n_previous=4)
        held, _ = policy.decide(state, view(slot=4, progress=pressed, available=0))
        assert held == Allocation(
            1, 0
        )  # 40 in 6 slots: 1 now, then 8 for five slots, the first of them at 0.9

    def test_a_gap_when_the_plan_is_due_puts_it_off(self):
        asked: list[HorizonProblem] = []
        price = np.full(10, 0.5)
        price[2] = np.nan
        window = make_window(price, [2] * 10)
        policy = Ahap(omega=3, commitment=2, sigma=0.9, commit=Commit.LAST, solve=recorded(asked))
        replay(policy, JOB, window)
        assert [problem.slot for problem in asked] == [0, 3, 5, 7, 9]

    def test_for_one_slot_both_ways_are_one(self):
        mean, last = (Ahap(omega=4, commitment=1, sigma=0.7, commit=commit) for commit in Commit)
        assert mean == last
        assert (last.name, last.commit) == ("AHAP(4,1,0.7)", Commit.MEAN)

    def test_it_says_whose_plan_it_follows(self):
        policy = Ahap(omega=3, commitment=3, sigma=0.9, commit=Commit.LAST)
        seen = view(progress=Progress(done=0.0))
        held, state = policy.decide(policy.start(JOB), seen)
        assert "the plan over 3 slots" in policy.explain(policy.start(JOB), seen, held)
        later = view(slot=1, progress=Progress(done=4.0, n_previous=held.total))
        assert "the plan of 1 slot ago" in policy.explain(state, later, policy.decide(state, later)[0])


class TestExpectedToGo:
    @staticmethod
    def on_demand_table(calls: list[int] | None = None):
        """Return the rule of M3.3b as a table of M3.3c, so that both rules must choose alike."""

        def table(seen: View, slot: int) -> ExpectedToGo:
            if calls is not None:
                calls.append(slot)
            job = seen.job
            work = np.linspace(0.0, job.workload, 81)
            held = [0, *range(job.n_min, job.n_max + 1)]
            value = [
                [
                    on_demand_to_go(
                        job, done=float(z), n_previous=n, slot=slot, on_demand_usd=seen.on_demand_usd,
                        slot_hours=seen.slot_hours,
                    ).value_usd
                    for n in held
                ]
                for z in work
            ]  # fmt: skip
            return ExpectedToGo(work=work, value_usd=np.array(value))

        return table

    def test_the_table_is_that_of_the_windows_end_and_its_values_decide(self):
        calls: list[int] = []
        asked: list[HorizonProblem] = []
        policy = Ahap(omega=3, commitment=1, sigma=0.9, end_rule=EndRule.EXPECTED_TO_GO,
                      expected=self.on_demand_table(calls), solve=recorded(asked))  # fmt: skip
        window = make_window(0.5, 2)
        outcome = replay(policy, replace(JOB, mu_up=1.0), window)
        tabled = [problem for problem in asked if problem.end_rule is EndRule.EXPECTED_TO_GO]
        assert calls == [problem.slot + 3 for problem in tabled]
        assert all(problem.expected is not None and problem.slot + 3 < 10 for problem in tabled)
        last = [problem for problem in asked if problem.slot + len(problem.window) == 10]
        assert last
        assert all(problem.end_rule is EndRule.ON_DEMAND_TO_GO for problem in last)
        assert outcome.on_time

    def test_a_table_of_on_demand_to_go_is_worth_what_that_rule_is(self):
        """At integer progress, where the steps of M3.3b and the lines of the table meet."""
        asked: list[HorizonProblem] = []
        policy = Ahap(omega=4, commitment=2, sigma=0.9, end_rule=EndRule.EXPECTED_TO_GO,
                      expected=self.on_demand_table(), solve=recorded(asked))  # fmt: skip
        window = make_window(0.5, [5, 0, 3, 8, 8, 0, 0, 2, 4, 8])
        replay(policy, replace(JOB, mu_up=1.0), window, forecasts=perfect_forecasts(window, 4))
        assert len(asked) > 4
        for problem in asked:
            plain = replace(problem, end_rule=EndRule.ON_DEMAND_TO_GO, expected=None)
            assert solve_window(problem).objective == pytest.approx(solve_window(plain).objective)

    def test_different_tables_are_different_programs(self):
        memo = PlanMemo()
        window = make_window(0.5, 2, slots=4)
        worth = np.array([[0.0] * 9, [100.0] * 9])
        tables = [ExpectedToGo(work=np.array([0.0, 40.0]), value_usd=scale * worth) for scale in (1.0, 0.0)]
        program = HorizonProblem(
            job=JOB, slot=0, done=0.0, n_previous=0, window=window, end_rule=EndRule.EXPECTED_TO_GO
        )
        plans = [memo(replace(program, expected=table)) for table in tables]
        assert len(memo.plans) == 2
        assert plans[0].allocations != plans[1].allocations


class TestSharedWindows:
    def test_views_of_one_replay_share_their_windows(self):
        seen = see(JOB, market(1), None)
        one, other = seen.view(JOB, Progress(), 3), seen.view(JOB, Progress(done=5.0), 3)
        assert one.window(4) is other.window(4)
        assert one.window(4) is not one.window(3)

    def test_a_view_that_was_changed_gets_its_own(self):
        forecast = PointForecast(price=np.array([0.1, 0.2]), available=np.array([1, 2]))
        seen = see(JOB, make_window(0.5, 4), None)
        first = seen.view(JOB, Progress(), 3)
        assert first.window(3).price.tolist() == [0.5, 0.5, 0.5]
        assert replace(first, forecast=forecast).window(3).price.tolist() == [0.5, 0.1, 0.2]
        assert replace(first, price=0.7).window(3).price.tolist() == [0.7] * 3
        assert replace(first, available=1).window(3).available.tolist() == [1] * 3
        assert len(replace(first, slot=9).window(3)) == 1

    def test_the_far_ahead_ask_for_no_plan_they_do_not_need(self):
        asked: list[HorizonProblem] = []
        memo = PlanMemo(solve=recorded(asked))
        far = view(slot=2, progress=Progress(done=30.0, n_previous=8))
        for commitment, programs in ((1, 0), (3, 1)):
            policy = with_shared_plans(Ahap(omega=3, commitment=commitment, sigma=0.9), memo)
            policy.decide(policy.start(JOB), far)
            assert len(asked) == programs
