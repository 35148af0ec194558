"""The stochastic policy in replays: information limits, sharing, and edge cases of jobs and markets (M4.6)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from forms_kit import quick_first
from hypothesis import given, settings
from hypothesis import strategies as st
from make import make_job, make_record, make_window

from slackwater.optimization import Allocation, Job, Progress
from slackwater.optimization.job.definition import Amdahl, Linear, RateTable, Throughput
from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.market.window import MarketWindow, Record
from slackwater.optimization.policies import stochastic
from slackwater.optimization.policies.pace import always_worth_finishing, pace
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.policies.stochastic import Stochastic, ValueTables, tables_in_force
from slackwater.optimization.replay.run import (
    PlanMemo,
    catch_up,
    replay,
    replay_seen,
    see,
    step,
    with_shared_plans,
)
from slackwater.optimization.window.plan import EndRule
from slackwater.optimization.window.twin import solve_window
from slackwater.studies.audit import audit_outcome
from slackwater.studies.replays import replay_pool
from slackwater.warehouse.errors import JobError, SettingsError

NAN = float("nan")
AHAP_EXPECTED = "AHAP(5,1,0.9,expected)"
AHAP_LAST_EXPECTED = "AHAP(3,3,0.9,last,expected)"
LEARNING = ("Stochastic(24)", "Stochastic(6)", AHAP_EXPECTED, AHAP_LAST_EXPECTED)
JOB = make_job(deadline_slots=14, mu_up=0.9, mu_down=0.95, value=70)
BEFORE = 30


def market(
    seed: int, *, slots: int = 14, n_max: int = 8, slot_hours: float = 0.5, gaps: float = 0.1
) -> tuple[MarketWindow, Record]:
    """Return a sticky market and the record it is cut from, starting `BEFORE` slots earlier, with two peers."""
    rng = np.random.default_rng(seed)
    k = BEFORE + slots
    price = np.clip(0.6 + 0.05 * rng.normal(size=k).cumsum(), 0.1, 1.3)
    counts = np.clip(
        rng.integers(0, n_max + 1, (3, 1)) + rng.integers(-2, 3, (3, k)).cumsum(axis=1), 0, n_max
    ).astype(float)
    unknown = rng.random(k) < gaps
    price[unknown] = NAN
    counts[0, unknown] = NAN
    counts[1:][rng.random((2, k)) < gaps] = NAN
    window = make_window(price[BEFORE:], counts[0, BEFORE:], slot_hours=slot_hours)
    return window, make_record(
        price, counts[0], first=BEFORE, slot_hours=slot_hours, peers=counts[1:], hour=3.0
    )


def policies() -> list:
    return [policy_named(name) for name in LEARNING]


def promised(name: str, job: Job, slot_hours: float) -> Job:
    """Return the job with the deadline promise of the policy.

    Where the price may argue against finishing, the job gets a hard deadline (M4).
    """
    priced = name.startswith("Stochastic")
    return replace(job, must_finish=priced and not always_worth_finishing(job, 1.0, slot_hours))


class TestNames:
    def test_the_half_life_is_in_the_name(self):
        assert policy_named("Stochastic").name == policy_named("Stochastic(24)").name == "Stochastic(24)"
        assert policy_named("Stochastic(6.5)") == Stochastic(half_life_hours=6.5)

    @pytest.mark.parametrize("hours", [0.0, -1.0, NAN])
    def test_a_half_life_that_is_none_is_refused(self, hours):
        with pytest.raises(SettingsError, match="half-life"):
            Stochastic(half_life_hours=hours)


class TestTheFutureIsNotSeen:
    @pytest.mark.parametrize("seed", quick_first(range(4), 2))
    @pytest.mark.parametrize("name", LEARNING)
    def test_scrambled_records_and_windows_after_t_change_nothing_up_to_t(self, name, seed):
        """M4.9, with the record and its peers."""
        window, record = market(seed)
        policy = policy_named(name)
        original = replay(policy, JOB, window, record=record).allocations
        for last in (0, 4, 9):
            rng = np.random.default_rng(seed)
            after = BEFORE + last + 1
            price, available, peers = (a.copy() for a in (record.price, record.available, record.peers))
            price[after:] = rng.uniform(0.05, 2.0, len(price) - after)
            available[after:] = rng.integers(0, 12, len(price) - after)
            peers[:, after:] = rng.integers(0, 12, (2, len(price) - after))
            other = replace(record, price=price, available=available, peers=peers)
            scrambled = make_window(price[BEFORE:], available[BEFORE:], slot_hours=0.5)
            changed = replay(policy, JOB, scrambled, record=other).allocations
            assert changed[: last + 1] == original[: last + 1]

    @pytest.mark.parametrize("name", LEARNING)
    def test_what_came_before_the_job_matters(self, name):
        """Shows that the record matters: the policy does not wait for a market that was never up, but does
        for a market that always was.
        """
        window, record = market(1, gaps=0.0)
        window = replace(window, price=np.full(14, 0.3), available=np.array([0, 0, 0, 0] + [8] * 10))
        price = np.full(BEFORE + 14, 0.3)
        price[BEFORE:] = window.price
        paid = []
        for before in (np.zeros(BEFORE), np.tile([8.0, 8.0, 0.0], BEFORE // 3)):
            counts = np.concatenate([before, window.available.astype(float)])
            seen = replace(record, price=price, available=counts, peers=np.empty((0, len(counts))))
            outcome = replay(policy_named(name), JOB, window, record=seen)
            paid.append(sum(a.on_demand for a in outcome.allocations[:4]))
        assert paid[0] > paid[1]


class TestSharing:
    @pytest.mark.parametrize("seed", quick_first(range(5), 2))
    def test_a_pool_in_any_order_is_one_at_a_time(self, seed):
        """Tables are shared by the views of one replay; the order of the policies must not matter (M5.1)."""
        window, record = market(seed, gaps=0.3)
        alone = [replay(policy, JOB, window, record=record) for policy in policies()]
        assert replay_pool(policies(), JOB, window, record=record) == alone
        assert replay_pool(policies()[::-1], JOB, window, record=record) == alone[::-1]
        assert replay_pool(policies(), JOB, window) == [replay(p, JOB, window) for p in policies()]

    def test_tables_of_a_slot_do_not_depend_on_who_asks_first(self, monkeypatch):
        """Slot 0 is a gap and its tables are computed later, in other slots; they equal those from the knowledge of slot 0."""
        monkeypatch.setattr(stochastic, "MOST_TABLES", 3)
        window, record = market(2, gaps=0.0)
        price = record.price.copy()
        price[BEFORE : BEFORE + 3] = [NAN, 0.40, 0.42]
        record = replace(record, price=price)
        window = make_window(price[BEFORE:], window.available, slot_hours=0.5)
        early, late = see(JOB, window, None, record), see(JOB, window, None, record)
        tables = []
        for seen, slots in ((early, (1, 2)), (late, (2,))):
            for slot in slots:
                view = seen.view(JOB, Progress(), slot)
                found = tables_in_force(view, Forgetting())
            tables.append(found)
        np.testing.assert_array_equal(tables[0].prices.level_usd, tables[1].prices.level_usd)
        np.testing.assert_array_equal(tables[0].after, tables[1].after)

    @pytest.mark.parametrize(("most", "made"), [(96, range(14)), (7, range(0, 14, 2)), (1, [0])])
    def test_tables_are_made_once_for_all(self, most, made, monkeypatch):
        """In every slot, but once for all policies; in long jobs at evenly spaced slots."""
        monkeypatch.setattr(stochastic, "MOST_TABLES", most)
        window, record = market(3, gaps=0.0)
        price = np.full(BEFORE + 14, 0.4)
        price[BEFORE + 8] = 0.8
        window = replace(window, price=price[BEFORE:])
        seen = see(JOB, window, None, replace(record, price=price))
        for policy in (policy_named("Stochastic"), policy_named(AHAP_EXPECTED)):
            state, progress = policy.start(JOB), Progress()
            for slot in range(14):
                view = seen.view(JOB, progress, slot)
                allocation, state = policy.decide(state, view)
                progress = step(progress, allocation, view)
        tables = [kept for kept in seen.tables.values() if isinstance(kept, ValueTables)]
        assert sorted(one.game.slot for one in tables) == list(made)

    def test_tables_let_go_for_want_of_room_are_made_again_the_same(self, monkeypatch):
        """The memory fits about one of three tables: the oldest are dropped, the newest stays, and no result changes."""
        window, record = market(3)
        roomy = see(JOB, window, None, record)
        alone = [replay(policy, JOB, window, record=record) for policy in policies()]
        replay_seen(policy_named("Stochastic"), JOB, roomy)
        largest = max(tables.after.nbytes for tables in roomy.tables.values())
        monkeypatch.setattr(stochastic, "MOST_BYTES", largest)
        cramped = see(JOB, window, None, record)
        replay_seen(policy_named("Stochastic"), JOB, cramped)
        assert sum(tables.after.nbytes for tables in cramped.tables.values()) <= largest
        made, kept = [[key[0].slot for key in one.tables] for one in (roomy, cramped)]
        assert kept == made[-len(kept) :], "the oldest go"
        assert 0 < len(cramped.tables) < len(roomy.tables)
        assert replay_pool(policies(), JOB, window, record=record) == alone
        monkeypatch.setattr(stochastic, "MOST_BYTES", 0)
        assert replay_pool(policies()[::-1], JOB, window, record=record) == alone[::-1]

    @pytest.mark.parametrize("name", [AHAP_EXPECTED, AHAP_LAST_EXPECTED])
    def test_plans_shared_by_content_are_exact(self, name):
        """M3.3 (c) is part of a program's content: markets with different tables get separate plans, equal
        tables share a plan.
        """
        memo, asked = PlanMemo(), []

        def solve(problem):
            asked.append(problem)
            return solve_window(problem)

        memo.solve = solve
        shared = with_shared_plans(policy_named(name), memo)
        for seed in range(4):
            window, record = market(seed)
            alone = replay(policy_named(name), JOB, window, record=record)
            assert replay(shared, JOB, window, record=record) == alone
            count = len(asked)
            assert replay(shared, JOB, window, record=record) == alone
            assert len(asked) == count, "the second time every plan is there"
        assert any(problem.end_rule is EndRule.EXPECTED_TO_GO for problem in asked)
        # The same window after another history is another program.
        window, record = market(0)
        other = replace(record, available=np.concatenate([np.zeros(BEFORE), record.available[BEFORE:]]))
        assert replay(shared, JOB, window, record=other) == replay(
            policy_named(name), JOB, window, record=other
        )

    def test_nothing_is_carried_from_slot_to_slot(self):
        """So catching up with a running job needs no extra work."""
        window, record = market(0)
        policy, seen = policy_named("Stochastic"), see(JOB, window, None, record)
        assert policy.decide(None, seen.view(JOB, Progress(), 0))[1] is None
        made = len(seen.tables)
        catch_up(policy, JOB, [seen.view(JOB, Progress(), slot) for slot in range(9)])
        assert len(seen.tables) == made


def small(**changes) -> Job:
    return replace(JOB, **changes)


#: Edge cases of jobs, slots and markets: (job, hours of a slot).
EDGES = {
    "single instance": (small(n_max=1, workload=3.5), 0.5),
    "twenty or fewer told apart of 64": (small(n_max=64, workload=200, value=400), 0.5),
    "few sizes, many instances": (small(n_min=62, n_max=64, workload=200, value=400), 0.5),
    "slots of three minutes": (small(deadline_slots=40, workload=8, value=30), 0.05),
    "slots of a day": (small(deadline_slots=5, workload=500, value=900), 24.0),
    "a deadline of one slot": (small(deadline_slots=1, workload=2), 0.5),
    "a restart of three slots": (small(mu_up=-2.2, mu_down=-0.4, workload=12), 0.5),
    "a restart that eats its slot": (small(mu_up=0.0, mu_down=0.0, workload=20), 0.5),
    "at least three": (small(n_min=3), 0.5),
    "Amdahl": (small(throughput=Amdahl(parallel=0.9), workload=12), 0.5),
    "measured rates that fall": (
        small(throughput=RateTable(rates=(1.0, 2.1, 2.9, 3.9, 3.5, 4.4, 5.0, 4.9)), workload=20), 0.5
    ),
    "worth nothing": (small(value=0.0), 0.5),
    "out of reach by d, not by gamma d": (small(workload=60, value=300), 0.5),
    "hopeless": (small(workload=1e5, value=300), 0.5),
}  # fmt: skip


class TestEdges:
    @pytest.mark.parametrize("with_record", [True, False])
    @pytest.mark.parametrize("edge", EDGES)
    def test_every_edge_is_run_audited_and_on_time_where_it_can_be(self, edge, with_record):
        job, slot_hours = EDGES[edge]
        in_reach = pace(job, slot_hours).reach[job.deadline_slots][0] >= job.workload
        for seed in range(2 if with_record else 1):
            window, record = market(seed, slots=job.deadline_slots, n_max=job.n_max, slot_hours=slot_hours)
            for name in ("Stochastic", AHAP_EXPECTED, AHAP_LAST_EXPECTED):
                asked = promised(name, job, slot_hours)
                outcome = replay(policy_named(name), asked, window, record=record if with_record else None)
                audit_outcome(asked, window, outcome)
                assert outcome.on_time or not in_reach, name

    @pytest.mark.parametrize("name", LEARNING)
    def test_dear_spot_is_never_held(self, name):
        """Spot at or above the on-demand price throughout: only the on-demand price level is left (M3.2)."""
        window, record = market(0)
        for price in (1.0, 1.7):
            dear = replace(window, price=np.full(14, price), observed=np.full(14, True))
            seen = replace(record, price=np.full(BEFORE + 14, price))
            outcome = replay(policy_named(name), JOB, dear, record=seen)
            assert outcome.on_time
            assert outcome.spot_share == 0.0

    @pytest.mark.parametrize("name", LEARNING)
    def test_without_anything_observed_the_net_alone_works(self, name):
        window = make_window(NAN, NAN, slot_hours=0.5, slots=14)
        record = make_record(np.full(44, NAN), np.full(44, NAN), first=BEFORE, slot_hours=0.5)
        for outcome in (
            replay(policy_named(name), JOB, window, record=record),
            replay(policy_named(name), JOB, window),
        ):
            assert outcome.on_time
            assert outcome.spot_share == 0.0
            assert outcome.allocations[0] == Allocation(0, 0)

    @pytest.mark.parametrize("name", LEARNING)
    def test_a_record_with_holes_where_the_job_saw_is_borne(self, name):
        """A value learned too late is a gap in the record but was seen by the job."""
        window, record = market(1, gaps=0.0)
        price, available = record.price.copy(), record.available.copy()
        price[BEFORE:], available[BEFORE:] = NAN, NAN
        outcome = replay(
            policy_named(name), JOB, window, record=replace(record, price=price, available=available)
        )
        audit_outcome(JOB, window, outcome)
        assert outcome.on_time

    @pytest.mark.parametrize("name", LEARNING)
    def test_a_record_that_begins_with_the_job_is_enough(self, name):
        window, record = market(2)
        cut = make_record(record.price[BEFORE:], record.available[BEFORE:], first=0, slot_hours=0.5)
        assert replay(policy_named(name), JOB, window, record=cut).on_time

    def test_a_record_that_begins_with_the_job_is_what_the_job_sees_itself(self):
        """Without a record the policy builds its own, so both histories are equal."""
        for seed in range(4):
            window, record = market(seed, gaps=0.2)
            cut = make_record(record.price[BEFORE:], record.available[BEFORE:], first=0, slot_hours=0.5)
            policy = policy_named("Stochastic")
            assert replay(policy, JOB, window, record=cut) == replay(policy, JOB, window)

    def test_a_look_ahead_knows_what_its_last_slot_knew(self):
        """A record without updates is accepted, also where the job begins after the last known slot."""
        window, record = market(3, gaps=0.0)
        for known in (BEFORE - 2, BEFORE + 1, BEFORE + 6):
            still = Record(
                price=record.price[:known], available=record.available[:known], peers=record.peers[:, :known],
                first=BEFORE, slot_hours=0.5, still=True,
            )  # fmt: skip
            assert replay(policy_named("Stochastic"), JOB, window, record=still).on_time

    @pytest.mark.parametrize("name", LEARNING)
    def test_a_job_that_cannot_resume_is_refused(self, name):
        window, record = market(0)
        with pytest.raises(JobError, match="checkpoint"):
            replay(policy_named(name), small(resumable=False), window, record=record)


THROUGHPUTS: list[Throughput] = [
    Linear(),
    Linear(beta=0.5),
    Amdahl(parallel=0.9),
    RateTable(rates=(1.0, 2.2, 1.4, 3.0)),
]


@st.composite
def tight_cases(draw: st.DrawFn):
    """Draw a job that on-demand can just finish, or finish with slack, and an arbitrary market; slots of 3 minutes to a day."""
    slots, n_max = draw(st.integers(1, 10)), draw(st.integers(1, 4))
    slot_hours = draw(st.sampled_from([3, 30, 60, 24 * 60])) / 60.0
    job = make_job(
        name="tight",
        workload=1.0,
        deadline_slots=slots,
        n_min=draw(st.integers(1, n_max)),
        n_max=n_max,
        throughput=draw(st.sampled_from(THROUGHPUTS)),
        mu_up=draw(st.floats(-3.0, 1.0)),
        mu_down=draw(st.floats(-3.0, 1.0)),
        value=draw(st.floats(0.0, 500.0)),
    )
    reach = pace(job, slot_hours).reach[slots][0]
    workload = reach * draw(st.sampled_from([1.0, 0.99, 0.7, 0.3])) if reach > 0 else slot_hours
    window, record = market(draw(st.integers(0, 10**6)), slots=slots, n_max=n_max, slot_hours=slot_hours)
    return replace(job, workload=workload), window, record if draw(st.booleans()) else None


def check_deadline(case) -> None:
    job, window, record = case
    # A workload of 1e-17 is a rounding error of a reach of zero.
    in_reach = pace(job, window.slot_hours).reach[job.deadline_slots][0] >= job.workload > 1e-12
    for name in ("Stochastic", AHAP_EXPECTED, AHAP_LAST_EXPECTED):
        asked = promised(name, job, window.slot_hours)
        outcome = replay(policy_named(name), asked, window, record=record)
        audit_outcome(asked, window, outcome)
        assert outcome.on_time or not in_reach, f"{name}: {outcome.progress} of {job.workload}"


@settings(max_examples=25, deadline=None, derandomize=True)
@given(tight_cases())
def test_no_deadline_in_reach_is_missed(case):
    check_deadline(case)


@pytest.mark.slow
@settings(max_examples=800, deadline=None, derandomize=True)
@given(tight_cases())
def test_no_deadline_in_reach_is_missed_long(case):
    check_deadline(case)


def test_a_job_given_up_buys_nothing_in_a_gap():
    """No size pays its price any more; an unknown count is no reason to rush (M2.6, M2.7)."""
    job = replace(JOB, workload=1e4, deadline_slots=5, value=1.0)
    market = make_window([0.4, NAN, 0.4, NAN, 0.4], [2, 2, 0, 4, 4])
    outcome = replay(policy_named("Stochastic"), job, market)
    assert [held.total for held in outcome.allocations] == [0] * 5
    assert outcome.utility_usd == 0.0
