"""Value tables of real jobs: the grid, the chosen sizes, and the end rule they provide for AHAP (M4.6, M3.3c)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_past, make_record, make_window
from market_games import HALF_HOUR, by_tree

from slackwater.optimization import EndRule, HorizonProblem, Job, Progress
from slackwater.optimization.job.definition import Linear, RateTable, on_demand_to_go
from slackwater.optimization.market.belief import MOST_STATES, Forgetting, Now, make_belief
from slackwater.optimization.market.window import Past
from slackwater.optimization.policies.grids import MOST_POINTS
from slackwater.optimization.policies.pace import pace
from slackwater.optimization.policies.stochastic import END_POINTS, ValueTables, expected_to_go, make_tables
from slackwater.optimization.replay.run import see
from slackwater.optimization.window.plan import PlanStatus
from slackwater.optimization.window.solver import plan_problem
from slackwater.optimization.window.twin import solve_window

SINGLE = 1e-6
ON_DEMAND_USD = 1.0
NAN = float("nan")

#: Jobs whose work lies on their grid: (job, work units that are a whole number of steps).
ON_GRID = {
    "one instance": make_job(workload=1.0, deadline_slots=4, n_max=1, value=4.0, mu_up=0.5),
    "two": make_job(workload=2.5, deadline_slots=4, n_max=2, value=6.0, mu_up=0.9, mu_down=0.95),
    "two or none": make_job(name="2-2", workload=2.0, deadline_slots=3, n_min=2, n_max=2, value=6.0, mu_up=0.6),
    "owing": make_job(workload=1.5, deadline_slots=4, n_max=2, value=9.0, mu_up=-0.2, mu_down=0.8),
    "measured": make_job(workload=1.8, deadline_slots=4, n_max=2, throughput=RateTable(rates=(1.0, 1.5)), value=5.0, mu_up=0.5),
    "late": make_job(workload=3.0, deadline_slots=3, n_max=2, value=20.0, gamma=2.0),
}  # fmt: skip
on_grid = pytest.mark.parametrize("job", ON_GRID.values(), ids=ON_GRID)


def history(seed: int = 0, *, n_max: int = 2, slots: int = 60, low: float = 0.3) -> Past:
    """Return a history of persistent counts and prices on two levels, the present price on the lower."""
    rng = np.random.default_rng(seed)
    stay = rng.integers(1, 6, slots)
    counts = np.repeat(rng.integers(0, n_max + 1, slots), stay)[:slots].astype(float)
    price = np.repeat(rng.choice([low, 0.6], slots), stay)[:slots]
    price[-1] = low
    return make_past(
        price=price, available=counts, peers=rng.integers(0, n_max + 1, (2, slots)).astype(float)
    )


def tables_of(
    job: Job,
    past: Past,
    *,
    slot: int = 0,
    keep: int = 99,
    slot_hours: float = HALF_HOUR,
    anywhere: bool = True,
) -> ValueTables:
    now = Now(
        slot=slot, slot_hours=slot_hours, price=float(past.price[-1]), available=float(past.available[-1]),
        on_demand_usd=ON_DEMAND_USD,
    )  # fmt: skip
    belief = make_belief(past, None, now=now, forgetting=Forgetting())
    return make_tables(job, belief, keep=keep, anywhere=anywhere)


def steps_of(tables: ValueTables, most: int = 12) -> list[int]:
    """Return some amounts of remaining work, in steps, including the whole workload."""
    whole = round(tables.job.workload / tables.game.step)
    assert whole * tables.game.step == pytest.approx(tables.job.workload), "the workload is on the grid"
    return sorted({1, whole, *range(1, whole, max(1, whole // most))})


class TestAgainstTheTree:
    @on_grid
    @pytest.mark.parametrize("slot", [0, 1])
    def test_the_values_are_those_of_the_tree_on_the_learned_chains(self, job, slot):
        tables = tables_of(job, history(), slot=slot)
        _, after = by_tree(job, tables.game)
        scale = SINGLE * (job.value + 10)
        for i, s, x, j in np.ndindex(tables.after.shape[:-1]):
            for g in steps_of(tables, 5):
                told = after(i, g, int(tables.game.sizes[j]), s, x)
                assert tables.after[i, s, x, j, g] == pytest.approx(told, abs=scale)

    @on_grid
    def test_the_size_chosen_is_worth_as_much_as_any(self, job):
        """In every state of the chains and for every previous size: the cost of the slot plus the value of the tree."""
        tables = tables_of(job, history(1))
        before, after = by_tree(job, tables.game)
        game, scale = tables.game, SINGLE * (job.value + 10)
        for i in range(len(tables.after)):
            for s, x, held in np.ndindex(len(game.available), len(game.price), job.n_max + 1):
                available, price = int(game.available[s]), float(game.price[x])
                if 0 < held < job.n_min:
                    continue
                for g in steps_of(tables, 4):
                    n = tables.size(slot=i, rest=g * game.step, before=held, available=available, price=price)
                    spot = min(n, available) if price < game.on_demand else 0
                    paid = spot * price + (n - spot) * game.on_demand
                    done = job.efficiency(n, held) * job.throughput.rate(n) * HALF_HOUR / game.step
                    worth = after(i, g - round(done), n, s, x) - paid
                    assert worth == pytest.approx(before(i, g, held, s, x), abs=2 * scale)

    @on_grid
    @pytest.mark.parametrize("ahead", [1, 2])
    def test_to_go_is_the_expectation_by_hand(self, job, ahead):
        """Computed from slot 0: over the market of every slot before the end, then with the tree."""
        tables = tables_of(job, history(2))
        before, _ = by_tree(job, tables.game)
        counts, prices = tables.counts, tables.prices
        s, x = counts.index(1), prices.index(0.6 * HALF_HOUR)
        go = tables.to_go(slot=0, end=ahead, available=1, price=0.6 * HALF_HOUR)
        states, levels = np.eye(len(counts.count))[s], np.eye(len(prices.level_usd))[x]
        for i in range(ahead):
            states, levels = states @ tables.game.chain[i], levels @ tables.game.price_chain[i]
        compared = 0
        for column, n in enumerate(tables.choices.sizes):
            for g in steps_of(tables, 4):
                told = sum(
                    p * q * before(ahead, g, int(n), t, y)
                    for t, p in enumerate(states)
                    for y, q in enumerate(levels)
                )
                # Between the points of a thinned table the value is linear.
                z = job.workload - g * tables.game.step
                if np.abs(go.work - z).min() < 1e-9:
                    compared += 1
                    assert go.at(z, column) == pytest.approx(told, abs=SINGLE * (job.value + 10))
        assert compared >= 3


class TestToGo:
    @pytest.mark.parametrize("mu_up", [0.9, -1.3])
    @pytest.mark.parametrize("n_max", [1, 5, 64])
    def test_it_never_falls_with_work_and_never_passes_the_value(self, n_max, mu_up):
        job = make_job(workload=3.0 * n_max, deadline_slots=12, n_max=n_max, mu_up=mu_up, value=5.0 * n_max)
        tables = tables_of(job, history(3, n_max=n_max))
        for end in (1, 4, 11):
            go = tables.to_go(slot=0, end=end, available=n_max, price=0.15)
            assert go.value_usd.shape == (len(go.work), n_max + 1)
            assert len(go.work) <= END_POINTS
            assert (np.diff(go.work) > 0).all()
            assert (np.diff(go.value_usd, axis=0) >= 0).all()
            assert go.value_usd.max() <= job.value
            assert go.work[-1] == job.workload
            np.testing.assert_allclose(go.value_usd[-1], job.value, rtol=1e-6)

    def test_beside_on_demand_alone_spot_is_worth_something(self):
        """At least the value of on-demand to go, for every size and amount of work, as that is one of the choices (M3.3b)."""
        job = ON_GRID["two"]
        tables = tables_of(job, history(4))
        go = tables.to_go(slot=0, end=2, available=2, price=0.15)
        gained = 0.0
        for column, n in enumerate(tables.choices.sizes.tolist()):
            for z, value in zip(go.work, go.value_usd[:, column], strict=True):
                if z < 0:
                    continue
                alone = on_demand_to_go(
                    job, done=float(z), n_previous=n, slot=2, on_demand_usd=1.0, slot_hours=HALF_HOUR
                ).value_usd
                assert value >= alone - SINGLE * 20
                gained = max(gained, value - alone)
        assert gained > 0.1

    def test_dear_times_are_worth_less_than_cheap_ones_and_nothing_there_less_than_all(self):
        tables = tables_of(ON_GRID["two"], history(5))
        worth = {
            (available, price): tables.to_go(slot=0, end=1, available=available, price=price * HALF_HOUR).at(
                0.5, 1
            )
            for available in (0, 2)
            for price in (0.3, 0.6)
        }
        assert worth[2, 0.3] > worth[2, 0.6] > worth[0, 0.6]
        assert worth[2, 0.3] > worth[0, 0.3]

    def test_a_window_of_one_slot_is_the_tables_own_choice(self):
        """AHAP's program over one slot, ended by the table, equals the objective of the stochastic policy (M3.1, M3.3c)."""
        job = ON_GRID["one instance"]
        tables = tables_of(job, history(6, n_max=1))
        assert tables.game.points <= END_POINTS, "no point is thinned out"
        for available, price in ((0, 0.3), (1, 0.3), (1, 0.6)):
            go = tables.to_go(slot=0, end=1, available=available, price=price * HALF_HOUR)
            window = make_window([price], [available], slot_hours=HALF_HOUR)
            for g in steps_of(tables):
                done = job.workload - g * tables.game.step
                plan = solve_window(
                    HorizonProblem(job=job, slot=0, done=done, n_previous=0, window=window,
                                   end_rule=EndRule.EXPECTED_TO_GO, expected=go)
                )  # fmt: skip
                before, _ = by_tree(job, tables.game)
                s, x = tables.counts.index(available), tables.prices.index(price * HALF_HOUR)
                assert plan.objective == pytest.approx(before(0, g, 0, s, x), abs=SINGLE * 20)

    @pytest.mark.parametrize("mu_up", [0.9, -0.7])
    def test_milp_and_twin_agree_on_programs_it_ends(self, mu_up):
        """The table as a policy gets it in the window of AHAP(3, ...), with both solvers (M3.2)."""
        job = make_job(workload=14.0, deadline_slots=9, n_max=4, mu_up=mu_up, mu_down=0.95, value=30.0)
        past = history(7, n_max=4, slots=50)
        record = make_record(past.price, past.available, first=35, slot_hours=HALF_HOUR, peers=past.peers)
        whole = make_window(past.price[35:44], past.available[35:44], slot_hours=HALF_HOUR)
        seen = see(job, whole, None, record)
        for slot, share in ((0, 0.0), (4, 0.4)):
            view = seen.view(job, Progress(done=share * job.workload, n_previous=2), slot)
            problem = HorizonProblem(
                job=job, slot=slot, done=view.progress.done, n_previous=2, window=view.window(3),
                end_rule=EndRule.EXPECTED_TO_GO, expected=expected_to_go(view, slot + 3),
            )  # fmt: skip
            exact, reference = solve_window(problem), plan_problem(problem)
            assert exact.status is reference.status is PlanStatus.OPTIMAL
            assert exact.objective == pytest.approx(reference.objective, abs=1e-6 * job.value)


class TestOnThePath:
    """Tables for a job begun at slot 0 whose deadline on-demand can still meet give the same choices as tables for any job."""

    @pytest.mark.parametrize("slot", [0, 3])
    @pytest.mark.parametrize(
        ("mu_up", "load"), [(0.9, 0.3), (0.9, 0.95), (0.5, 0.7), (-0.6, 0.5), (-2.0, 0.3)]
    )
    def test_every_state_on_it_has_the_same_choice(self, mu_up, load, slot):
        job = make_job(
            workload=12 * 4 * HALF_HOUR * load,
            deadline_slots=12,
            n_max=4,
            mu_up=mu_up,
            mu_down=0.95,
            value=60.0,
        )
        past, numbers = history(8, n_max=4), pace(job, HALF_HOUR)
        whole, banded = (tables_of(job, past, slot=slot, anywhere=anywhere) for anywhere in (True, False))
        compared = 0
        for t in range(slot, job.deadline_slots):
            for before in range(job.n_max + 1):
                least = max(0.0, job.workload - t * max(numbers.gain))
                for rest in np.linspace(
                    least, min(job.workload, numbers.reach[job.deadline_slots - t][before]), 5
                )[1:]:
                    for available, price in ((0, 0.15), (3, 0.15), (4, 0.3)):
                        asked = {
                            "slot": t,
                            "rest": float(rest),
                            "before": before,
                            "available": available,
                            "price": price,
                        }
                        compared += 1
                        assert banded.size(**asked) == whole.size(**asked), asked
        assert compared > 300


class TestGrid:
    @on_grid
    def test_gains_and_workload_lie_on_it(self, job):
        """The gain of one slot at full efficiency and the workload lie on the grid; the grid extends beyond
        the workload by a restart that owes work.
        """
        game = tables_of(job, history()).game
        steps = np.append(game.gain, job.workload) / game.step
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-9)
        owed = max(0.0, -job.mu_up, -job.mu_down) * game.gain.max()
        assert (game.points - 1) * game.step >= job.workload + owed

    @pytest.mark.parametrize(
        ("n_max", "slots", "slot_hours"),
        [(1, 1, 24.0), (16, 48, 0.5), (64, 96, 0.25), (8, 480, 0.05), (64, 480, 0.05)],
    )
    def test_it_is_bounded_whatever_the_job(self, n_max, slots, slot_hours):
        job = make_job(
            workload=0.6 * slots * n_max * slot_hours,
            deadline_slots=slots,
            n_max=n_max,
            throughput=Linear(beta=0.31),
            mu_up=0.83,
            value=9.0,
        )
        tables = tables_of(
            replace(job, deadline_slots=min(slots, 24)), history(n_max=n_max), keep=2, slot_hours=slot_hours
        )
        assert tables.game.points <= MOST_POINTS + 3
        assert tables.game.step <= tables.game.gain.max() / 2
        assert len(tables.game.sizes) <= MOST_STATES + 1
        assert (tables.game.points - 1) * tables.game.step >= job.workload

    def test_the_edge_of_reach_is_on_it_where_the_load_is_full(self):
        """n_max in every slot just finishes, one grid step more does not: the grid does not blur the limit."""
        job = make_job(workload=16.0, deadline_slots=8, n_max=4, value=40.0, gamma=1.01)
        past = make_past(price=np.full(9, 1.0), available=np.zeros(9))
        tables = tables_of(job, past)
        kept = tables.after[0, 0, 0]
        whole = round(job.workload / tables.game.step)
        left = round(whole - 4 * HALF_HOUR / tables.game.step)
        assert kept[4, left] == pytest.approx(job.value - 4 * 7 * HALF_HOUR, abs=1e-3)
        assert kept[4, left + 1] < 1e-3

    def test_many_sizes_are_spread_and_each_has_one_that_stands_for_it(self):
        job = make_job(workload=100.0, deadline_slots=6, n_min=3, n_max=64, value=300.0)
        tables = tables_of(job, history(n_max=64))
        assert tables.game.sizes[0] == 0
        assert tables.game.sizes[1] == 3
        assert tables.game.sizes[-1] == 64
        assert len(tables.game.sizes) == MOST_STATES
        assert tables.choices.sizes.tolist() == [0, *range(3, 65)]
        distance = np.abs(tables.game.sizes[tables.choices.near] - tables.choices.sizes)
        assert distance.max() <= 4
        assert tables.choices.near[0] == 0
        assert (
            distance[1:] == np.abs(tables.game.sizes[1:, None] - tables.choices.sizes[1:]).min(axis=0)
        ).all()

    def test_every_size_may_be_chosen_though_few_are_told_apart(self):
        """Exactly the remaining work in the last slot, 37 of 64 instances: no rounding to the spread sizes."""
        job = make_job(workload=100.0, deadline_slots=3, n_max=64, value=900.0)
        tables = tables_of(job, history(n_max=64))
        chosen = tables.size(slot=2, rest=37 * HALF_HOUR, before=37, available=64, price=0.15)
        assert chosen == 37

    def test_the_same_past_gives_the_same_tables(self):
        job = ON_GRID["two"]
        np.testing.assert_array_equal(tables_of(job, history()).after, tables_of(job, history()).after)
