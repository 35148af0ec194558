"""The bill: cost by job, slot and week, from reports where available, compared with on-demand only."""

import shutil

import numpy as np
import pandas as pd
import pytest
from command_kit import call
from forms_kit import quick_first
from make import make_request
from tidy_folder import write_prices

from slackwater.flows.jobs.bill import cost_rows, paid_by_job
from slackwater.flows.ledger.decisions import save_decisions
from slackwater.flows.ledger.jobs import save_jobs
from slackwater.warehouse.issued import write_rows
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_reader, open_store

STEP = pd.Timedelta(minutes=30)
START = pd.Timestamp("2026-03-08T23:00Z")  # a Sunday


def decision(job, slot, on_demand, spot, share, price=1.0, **more):
    return {
        "job": job, "slot": slot.isoformat(), "slot_end": (slot + STEP).isoformat(), "market": "lab/r/z/x", "source": "lab",
        "policy": "UP", "reason": "because", "step_minutes": 30.0, "on_demand": on_demand, "spot": spot,
        "progress_share": share, "on_demand_only_usd": 20.0, "on_demand_usd_per_hour": 4.0, "spot_usd_per_hour": price,
    } | more  # fmt: skip


def reported(job, at, **more):
    return {
        "job": job, "reported_at": at, "known_at": at, "revision": 0, "progress": None, "on_demand": None, "spot": None,
        "finished": False, "note": "", "market": None,
    } | more  # fmt: skip


@pytest.fixture(scope="module")
def billed(tmp_path_factory):
    """Return four slots of a job (decided, reported with other counts, decided, then finished) and a second job without a price."""
    path = tmp_path_factory.mktemp("billed") / "w.duckdb"
    requests = [
        make_request(name, at=START, market="lab/r/z/x", source="lab", deadline_in="10h", n_max=4)
        for name in ("lora", "other")
    ]
    slots = [START + k * STEP for k in range(4)]
    rows = [
        decision("lora", slots[0], 0, 4, 0.0),
        decision("lora", slots[1], 0, 4, 0.25),
        decision("lora", slots[2], 1, 1, 0.50, price=2.0),
        decision("lora", slots[3], 2, 0, 0.75),
        decision("other", slots[0], 0, 2, 0.0, price=None),
    ]
    with open_store(path) as store:
        save_jobs(store, requests, origin="user", at=START, step=STEP)
        save_decisions(store, [("r", row) for row in rows])
        write_rows(store, "reports", [
            reported("lora", slots[1] + pd.Timedelta(minutes=5), spot=3),
            reported("lora", slots[3] + STEP, finished=True),
        ])  # fmt: skip
    return path


@pytest.fixture
def db(billed, tmp_path):
    """Return a copy of that warehouse."""
    return shutil.copyfile(billed, tmp_path / "w.duckdb")


@pytest.mark.parametrize("is_later", quick_first([True, False]))
def test_reported_instances_are_paid_through_slots_without_a_decision(tmp_path, is_later):
    """2 spot at $1 for 10 minutes, 3 for 80, 1 for 30, of which an hour has no decision; then none, or what was decided."""
    path, minute = tmp_path / "w.duckdb", pd.Timedelta(minutes=1)
    placed = make_request("lora", at=START, market="lab/r/z/x", source="lab", deadline_in="10h", n_max=4)
    slots = [START, START + 4 * STEP] if is_later else [START]
    counts = {0: 2, 10: 3, 90: 1} | ({} if is_later else {120: 0})
    with open_store(path) as store:
        save_jobs(store, [placed], origin="user", at=START, step=STEP)
        save_decisions(store, [("r", decision("lora", slot, 0, 4, 0.0)) for slot in slots])
        write_rows(
            store, "reports", [reported("lora", START + k * minute, spot=n) for k, n in counts.items()]
        )
    found = call("bill", "lora", "--db", path, "--json").value["slots"]
    expected = (2 * 10 + 3 * 80 + 1 * 30) / 60
    assert [row["paid_usd"] for row in found] == pytest.approx([expected, 2.0] if is_later else [expected])


def test_instances_reported_after_a_slot_without_reports_are_paid_from_their_report(db):
    """The slot as decided, 2 on-demand for half an hour; then nothing is known, and 4 spot at $1 for a quarter of an hour."""
    ends = START + 4 * STEP
    with open_store(db) as store:
        times = {45: 4, 60: 0}
        reports = [reported("lora", ends + pd.Timedelta(minutes=k), spot=n) for k, n in times.items()]
        write_rows(store, "reports", reports)
    newest = call("bill", "lora", "--db", db, "--json").value["slots"][-1]
    assert (newest["on_demand"], newest["spot"], newest["held_from"]) == (2, 0, "decided")
    assert newest["paid_usd"] == pytest.approx(4.0 + 1.0)


def test_a_bill_with_lost_spot_states_until_when_it_is_paid(db):
    assert "Lost spot is paid until" not in call("bill", "lora", "--db", db).out
    with open_store(db) as store:
        write_rows(store, "reports", [reported("lora", START + pd.Timedelta(minutes=50), spot=1, lost=2)])
    for words in (["lora"], []):
        assert "Lost spot is paid until the loss" in call("bill", *words, "--db", db).out
    assert "Lost spot is paid until" not in call("bill", "other", "--db", db).out


def test_each_slot_is_paid_as_it_was_held(db):
    """4 spot at $1, 3 reported spot at $1, 1 on-demand at $4 and 1 spot at $2, 2 on-demand at $4; half an hour each."""
    found = call("bill", "lora", "--db", db, "--json").value
    assert [row["paid_usd"] for row in found["slots"]] == [2.0, 1.5, 3.0, 4.0]
    assert [row["held_from"] for row in found["slots"]] == ["decided", "reported", "decided", "decided"]
    assert [row["on_demand_only_usd"] for row in found["slots"]] == [5.0] * 4
    (total,) = found["jobs"]
    assert (total["paid_usd"], total["on_demand_only_usd"], total["saved_usd"]) == (10.5, 20.0, 9.5)
    assert total["saved_share"] == pytest.approx(9.5 / 20)


def outcome(job):
    return {
        "job": job, "policy": "UP", "scored_at": START + 4 * STEP, "utility_usd": 0.0, "value_usd": 0.0, "cost_usd": 1.0,
        "termination_cost_usd": 0.0, "on_time": True, "finished_slot": 1, "finish_slots": 1.0, "spot_share": 0.0,
        "progress": 1.0, "utility_normalised": 0.0, "hindsight_low_usd": 0.0, "hindsight_high_usd": 0.0,
        "allocations": "[]", "details": "{}",
    }  # fmt: skip


def fast_job(store, shares, alone, reports=(), **more):
    """Store a job that runs 4 spot at $1 for half an hour a slot, where on-demand costs $4, and its bill slot by slot."""
    job = make_request("lora", at=START, market="lab/r/z/x", source="lab", deadline_in="10h", n_max=4)
    save_jobs(store, [job], origin="user", at=START, step=STEP)
    slots = [START + k * STEP for k in range(len(shares))]
    rows = [
        decision("lora", slot, 0, 4, share, on_demand_only_usd=alone)
        | {name: own[k] for name, own in more.items()}
        for k, (slot, share) in enumerate(zip(slots, shares, strict=True))
    ]
    save_decisions(store, [("r", row) for row in rows])
    write_rows(store, "reports", [*reports, reported("lora", slots[-1] + STEP, finished=True)])
    return cost_rows(store, "lora")


def test_the_bill_of_a_job_is_its_part_of_the_bill_of_all(db):
    with open_reader(db) as store:
        rows, paid = cost_rows(store), paid_by_job(store, ["lora"])
        assert {row["job"] for row in rows} == {"lora", "other"}
        for job in ("lora", "other"):
            assert cost_rows(store, job) == [row for row in rows if row["job"] == job]
        assert paid == {"lora": pytest.approx(sum(row["paid_usd"] for row in rows if row["job"] == "lora"))}


@pytest.mark.parametrize(
    ("shares", "alone", "expected", "origin"),
    [
        # 4 instances on demand cost $8 a slot, whatever the file states; the work of a slot was half as much by the file.
        ([0.0, 0.05], 80.0, [4.0, 12.0], ["work", "instances"]),
        ([0.0], 800.0, [8.0], ["instances"]),
        ([0.0, 0.9], 80.0, [8.0, 8.0], ["instances", "instances"]),
        # Progress reported late: the work of three slots in the third.
        ([0.0, 0.0, 0.0, 0.75], 24.0, [0.0, 0.0, 18.0, 6.0], ["work"] * 4),
        # As the file states, and less than that.
        ([0.0, 0.5], 16.0, [8.0, 8.0], ["work"] * 2),
        ([0.0, 0.5], 10.0, [5.0, 5.0], ["work"] * 2),
    ],
)
def test_on_demand_only_is_for_the_work_as_it_turned_out(tmp_path, shares, alone, expected, origin):
    with open_store(tmp_path / "w.duckdb") as store:
        rows = fast_job(store, shares, alone)
    assert [row["on_demand_only_usd"] for row in rows] == pytest.approx(expected)
    assert [row["on_demand_only_from"] for row in rows] == origin
    assert [row["saved_usd"] for row in rows] == pytest.approx([usd - 2.0 for usd in expected])
    assert sum(row["saved_usd"] for row in rows) <= len(rows) * (8.0 - 2.0) + 1e-9


def test_a_changed_amount_of_work_is_no_work_done(tmp_path):
    """A quarter of 100 in each of two slots; then half of the work is dropped, and the third slot does the rest."""
    with open_store(tmp_path / "w.duckdb") as store:
        rows = fast_job(store, [0.0, 0.25, 0.8], 32.0, workload=[100.0, 100.0, 62.5])
    assert [row["work_share"] for row in rows] == pytest.approx([0.25, 0.25, 0.2])


def test_work_that_a_report_takes_back_is_explained(tmp_path):
    """A quarter was assumed after the first slot, and a tenth is reported after the second."""
    db = tmp_path / "w.duckdb"
    with open_store(db) as store:
        rows = fast_job(store, [0.0, 0.25, 0.1], 32.0)
    assert [row["work_share"] for row in rows] == pytest.approx([0.25, -0.15, 0.9])
    assert "Negative work in a slot corrects the slots before it" in call("bill", "--db", db).said


def test_a_bill_names_the_jobs_that_did_more_work_than_their_instances_can(tmp_path):
    """The case of a file that states ten times the work: 32 of 320 GPU-hours of 8 GPUs, at $8 of $22 an instance-hour."""
    path = tmp_path / "w.duckdb"
    with open_store(path) as store:
        fast_job(store, [0.0], 880.0)
    said = call("bill", "--db", path).said
    assert said.startswith(
        "Paid $2.00 for 1 job. On-demand only would have cost $8.00 for the work done: 75 % saved."
    )
    assert (
        "lora did more work than its instances do at the throughput of the job file: compared with the same"
        in said
    )


@pytest.mark.parametrize("value_usd", quick_first([50.0, None]))
def test_a_job_that_ended_unfinished_has_no_saving(tmp_path, value_usd):
    """Half of the work of a job whose deadline has passed, and of another job that finished."""
    path = tmp_path / "w.duckdb"
    jobs = [
        make_request(
            name, at=START, market="lab/r/z/x", source="lab", deadline_in="1h", n_max=4,
            **({} if value_usd is None else {"value_usd": value_usd}),
        )
        for name in ("half", "whole")
    ]  # fmt: skip
    with open_store(path) as store:
        save_jobs(store, jobs, origin="user", at=START, step=STEP)
        rows = [decision(name, START + k * STEP, 0, 4, k / 4) for name in ("half", "whole") for k in range(2)]
        save_decisions(store, [("r", row) for row in rows])
        write_rows(store, "reports", [
            reported("half", START + 2 * STEP, progress=0.5 * jobs[0].workload.amount),
            reported("whole", START + 2 * STEP, finished=True),
        ])  # fmt: skip
        write_rows(store, "outcomes", pd.DataFrame([outcome(name) for name in ("half", "whole")]))
    called = call("bill", "--db", path, "--json")
    by_job = {
        row["job"]: (row["paid_usd"], row["on_demand_only_usd"], row["saved_usd"])
        for row in called.value["jobs"]
    }
    assert by_job == {"half": (4.0, None, None), "whole": (4.0, 16.0, 12.0)}
    assert (called.value["weeks"][0]["paid_usd"], called.value["weeks"][0]["saved_usd"]) == (8.0, 12.0)
    assert "Not compared: half ended unfinished; $4.00 paid." in call("bill", "--db", path).said
    with open_reader(path) as store:  # what other tools read
        saved = "SELECT job, sum(paid_usd), sum(on_demand_only_usd), sum(saved_usd) FROM job_costs GROUP BY job ORDER BY job"
        assert store.execute(saved) == [("half", 4.0, None, None), ("whole", 4.0, 16.0, 12.0)]


@pytest.mark.parametrize(
    ("reports", "more", "scored", "is_compared"),
    [
        ([], {}, True, False),
        ([], {"expected_finish": START + 2 * STEP}, True, True),  # its last decision could finish it in time
        ([("2h", {"progress": 1.0})], {"expected_finish": START + 2 * STEP}, True, False),
        ([("3h", {"finished": True})], {}, True, True),  # late, but done
        ([("40min", {"withdrawn": True})], {}, True, True),
        ([("40min", {"progress": 1.0})], {}, False, True),  # not over
    ],
)
def test_rows_of_the_view_are_compared_as_the_bill_is(tmp_path, reports, more, scored, is_compared):
    path = tmp_path / "w.duckdb"
    job = make_request("j", at=START, market="lab/r/z/x", source="lab", deadline_in="1h", n_max=4)
    more = {name: value.isoformat() for name, value in more.items()}
    rows = [
        decision("j", START + k * STEP, 0, 4, k / 4, **more, workload=job.workload.amount) for k in range(2)
    ]
    with open_store(path) as store:
        save_jobs(store, [job], origin="user", at=START, step=STEP)
        save_decisions(store, [("r", row) for row in rows])
        write_rows(store, "reports", [reported("j", START + pd.Timedelta(at), **own) for at, own in reports])
        write_rows(store, "outcomes", pd.DataFrame([outcome("j")] * scored))
    (total,) = call("bill", "j", "--db", path, "--json").value["jobs"]
    with open_reader(path) as store:
        ((saved,),) = store.execute("SELECT sum(saved_usd) FROM job_costs")
    assert (saved is not None) == (total["saved_usd"] is not None) == is_compared


EAST, WEST = "lab/r/z/x", "lab/r/y/x"


#: Reports after the start of the first of two slots, by job, and the cost of the second.
MOVES = (
    # Of the second slot: 4 in the east at its price of the slot before, though the decision moved on.
    ([("30min", {"spot": 4, "market": EAST})], 2.0),
    ([("30min", {"spot": 4})], 2.0),  # at its start the job still runs where the slot before had it
    ([("31min", {"spot": 4})], 4.0),
    ([("31min", {"spot": 4, "market": WEST})], 4.0),
    # 10 minutes of 4 in the east, then 20 minutes of 2 on demand in the west.
    ([("30min", {"spot": 4, "market": EAST}), ("40min", {"on_demand": 2, "market": WEST})], 4 / 6 + 16 / 6),
    ([("31min", {"spot": 4, "market": "lab/r/w/x"})], None),  # no decision has a price there
    ([("31min", {"spot": 0, "market": "lab/r/w/x"})], 0.0),
)


def test_reported_instances_are_paid_where_and_as_long_as_they_ran(tmp_path):
    """Two slots of jobs in two markets, at $1 and $2 of spot: the second decision moves each job west."""
    names = [f"mover-{k}" for k in range(len(MOVES))]
    terms = {"market": None, "source": None, "markets": ["lab/r/*/x"], "deadline_in": "5h"}
    with open_store(tmp_path / "w.duckdb") as store:
        requests = [make_request(name, at=START, **terms) for name in names]
        save_jobs(store, requests, origin="user", at=START, step=STEP)
        for name, (said, _) in zip(names, MOVES, strict=True):
            rows = [
                decision(name, START, 0, 4, 0.0),
                decision(name, START + STEP, 0, 4, 0.2, 2.0, market=WEST),
            ]
            save_decisions(store, [("r", row) for row in rows])
            write_rows(
                store,
                "reports",
                [reported(name, START + pd.Timedelta(after), **values) for after, values in said],
            )
        second = {row["job"]: row for row in cost_rows(store) if row["slot"] == START + STEP}
    for name, (_, paid) in zip(names, MOVES, strict=True):
        assert second[name]["held_from"] == "reported", name
        assert second[name]["paid_usd"] == (None if paid is None else pytest.approx(paid)), name


#: Instances of a first report, by job, and the instance-minutes paid.
LAUNCHES = (
    ({"spot": 4}, 4 * 30),  # since the slot began, as far as is known
    ({"spot": 4, "held_minutes": 0.0}, 4 * 20),
    ({"spot": 4, "asked": 4, "granted": 4, "held_minutes": 5.0}, 4 * 25),
    ({"spot": 4, "held_minutes": 90.0}, 4 * 30),
    ({"spot": 1, "lost": 3, "held_minutes": 5.0}, 4 * 10 + 1 * 20),
)


def test_the_first_report_of_a_job_counts_from_the_launch_that_it_states(tmp_path):
    """4 spot decided at $1 for half an hour, and a report after 10 minutes."""
    names = [f"job-{k}" for k in range(len(LAUNCHES))]
    with open_store(tmp_path / "w.duckdb") as store:
        for name, (counts, _) in zip(names, LAUNCHES, strict=True):
            save_decisions(store, [("r", decision(name, START, 0, 4, 0.0))])
            write_rows(store, "reports", [reported(name, START + pd.Timedelta(minutes=10), **counts)])
        paid = {row["job"]: row["paid_usd"] for row in cost_rows(store)}
    assert paid == pytest.approx(
        {name: minutes / 60 for name, (_, minutes) in zip(names, LAUNCHES, strict=True)}
    )


MINUTE = pd.Timedelta(minutes=1)


def test_instances_that_run_on_after_the_finish_are_paid_until_they_are_reported_as_stopped(tmp_path):
    with open_store(tmp_path / "w.duckdb") as store:
        save_decisions(store, [("r", decision("lora", START, 0, 4, 0.0))])
        write_rows(store, "reports", [
            reported("lora", START, spot=4),
            reported("lora", START + 20 * MINUTE, finished=True),
            reported("lora", START + 23 * MINUTE, on_demand=0, spot=0),
        ])  # fmt: skip
        (row,) = cost_rows(store, "lora")
    assert row["paid_usd"] == pytest.approx(4 * 23 / 60)


class RandomJob:
    """Decisions, reports and observed prices of a job at random minutes, and its bill minute by minute."""

    def __init__(self, rng, name, observed):
        self.name, self.observed = name, observed
        slots = np.flatnonzero(rng.random(8) < 0.7) if rng.random() < 0.8 else np.arange(8)
        self.slots = [int(k) * 30 for k in (slots if len(slots) else [0])]
        self.decided = {
            at: (str(rng.choice([EAST, WEST])), int(rng.integers(0, 3)), int(rng.integers(0, 5)))
            for at in self.slots
        }
        self.prices = {at: float(rng.integers(1, 9)) for at in self.slots}
        times = rng.choice(np.arange(self.slots[0], 300), size=int(rng.integers(0, 9)), replace=False)
        times = {int(at) for at in times} | set(rng.choice(self.slots, 1) if rng.random() < 0.3 else [])
        self.reports = {
            int(at): (str(rng.choice([EAST, WEST])), int(rng.integers(0, 2)), int(rng.integers(0, 5)))
            for at in sorted(times)
        }
        self.ended = int(self.slots[-1] + rng.integers(1, 30)) if rng.random() < 0.3 else None
        self.ends = max([self.slots[-1] + 30, *self.reports])

    def save(self, store):
        rows = [
            decision(self.name, START + at * MINUTE, on_demand, spot, 0.0, self.prices[at], market=market)
            for at, (market, on_demand, spot) in self.decided.items()
        ]
        save_decisions(store, [("r", row) for row in rows])
        reports = [
            reported(self.name, START + at * MINUTE, market=market, on_demand=on_demand, spot=spot)
            for at, (market, on_demand, spot) in self.reports.items()
        ]
        if self.ended is not None and self.ended not in self.reports:
            reports.append(reported(self.name, START + self.ended * MINUTE, finished=True))
        write_rows(store, "reports", reports)

    def held(self, minute):
        """Return market, on-demand and spot in a minute, by the sentences of the help of `bill`."""
        slot = max(at for at in self.slots if at <= minute)
        until = min([at for at in self.slots if at > slot], default=self.ends)
        own = {at: held for at, held in self.reports.items() if slot <= at < until}
        known = [at for at in own if at <= minute]
        if self.ended is not None and self.ended <= minute and max(self.reports, default=-1) <= self.ended:
            return None
        if known:
            return own[max(known)]
        if not any(at < slot + 30 for at in own):
            return self.decided[slot] if minute < slot + 30 else None
        before = max((at for at in self.slots if at < slot), default=slot)
        earlier = [at for at in self.reports if before <= at < slot]
        return self.reports[max(earlier)] if earlier else own[min(own)]

    def usd(self, minute, market):
        """Return the spot price of a market in a minute; None if it is not known."""
        own = {at: usd for at, usd in self.observed[market].items() if at <= minute // 30 * 30}
        if own:
            return own[max(own)]
        decided = [at for at in self.slots if at <= minute and self.decided[at][0] == market]
        return self.prices[max(decided)] if decided else None

    def bill(self):
        """Return the cost by slot, None where a price is not known."""
        found = dict.fromkeys(self.slots, 0.0)
        for minute in range(self.slots[0], self.ends):
            held = self.held(minute)
            slot = max(at for at in self.slots if at <= minute)
            if held is None or sum(held[1:]) == 0 or found[slot] is None:
                continue
            market, on_demand, spot = held
            is_known = any(own[0] == market and at <= minute for at, own in self.decided.items())
            usd = self.usd(minute, market) if is_known else None
            found[slot] = None if usd is None else found[slot] + (4.0 * on_demand + usd * spot) / 60
        return list(found.values())


@pytest.mark.parametrize("count", quick_first([15, 50]))
def test_a_bill_is_the_sum_of_its_minutes(tmp_path, count):
    """Random jobs in a market whose observed price changes between slots, and in one without observed prices."""
    rng = np.random.default_rng(7)
    times = np.sort(rng.choice(np.arange(-60, 300), size=12, replace=False))
    prices = rng.integers(1, 9, size=12) * 1.0
    observed = {EAST: dict(zip(times.tolist(), prices.tolist(), strict=True)), WEST: {}}
    write_prices(tmp_path / "data", "r", "z", "x", START + times * MINUTE, prices, 4.0, source="lab")
    jobs = [RandomJob(rng, f"job-{k:03}", observed) for k in range(count)]
    with open_store(tmp_path / "w.duckdb") as store:
        ingest(store, "tabular", tmp_path / "data", imported_at=START, progress=lambda _: None)
        for job in jobs:
            job.save(store)
        rows = cost_rows(store)
    bills = {name: own["paid_usd"].tolist() for name, own in pd.DataFrame(rows).groupby("job")}
    for job in jobs:
        expected = [np.nan if usd is None else usd for usd in job.bill()]
        assert bills[job.name] == pytest.approx(expected, abs=1e-6, nan_ok=True), job.name
    assert np.isnan(np.concatenate([*bills.values()])).any()


def test_weeks_begin_on_monday(db):
    found = call("bill", "--db", db, "--json").value
    assert [(row["week"], row["paid_usd"]) for row in found["weeks"]] == [
        ("2026-03-02", 3.5),
        ("2026-03-09", 7.0),
    ]
    with open_reader(db) as store:
        rows = store.execute(
            "SELECT job, date_trunc('week', slot) AS week, sum(saved_usd) FROM job_costs WHERE job = 'lora' "
            "GROUP BY ALL ORDER BY ALL"
        )
    assert [saved for *_, saved in rows] == [6.5, 3.0]


def test_a_slot_without_a_price_is_counted_and_in_no_sum(db):
    other = call("bill", "--db", db, "--json").value["jobs"][1]
    assert (other["job"], other["unpriced"], other["paid_usd"], other["saved_usd"]) == (
        "other",
        1,
        None,
        None,
    )
    both = call("bill", "--db", db).said
    assert (
        "for 2 jobs, counted to the end of the newest slot, 2026-03-08 23:30 UTC, without 1 slot whose"
        in both
    )
    alone = call("bill", "other", "--db", db).said
    assert alone.startswith("What was paid for 1 job is not known, counted to")
    assert "0.00" not in alone.partition("By week")[0]


def test_the_sum_comes_first_and_says_where_it_comes_from(db):
    first = call("bill", "lora", "--db", db).said
    assert first.startswith(
        "Paid $10.50 for 1 job. On-demand only would have cost $20.00 for the work done: 48 % saved. "
        "3 of 4 slots by what was decided, the others by reports."
    )


def test_a_bill_names_what_is_not_known(tmp_path):
    """Two slots with a slot between them, of an open job, at prices that nobody observed."""
    db = tmp_path / "w.duckdb"
    placed = make_request("lora", at=START, market="lab/r/z/x", source="lab", deadline_in="10h", n_max=4)
    with open_store(db) as store:
        save_jobs(store, [placed], origin="user", at=START, step=STEP)
        save_decisions(
            store, [("r", decision("lora", START + k * STEP, 0, spot, 0.0)) for k, spot in ((0, 1), (2, 4))]
        )
    said = call("bill", "--db", db).said
    assert "Paid $2.50 for 1 job, counted to the end of the newest slot, 2026-03-09 00:30 UTC." in said
    assert "Spot price not observed in 2 of 2 slots with spot: that of the decision is used." in said
    assert "Not in the bill: 1 gap between slots, where nothing was decided or reported." in said
    with open_store(db) as store:
        write_rows(store, "reports", [reported("lora", START + 3 * STEP, finished=True)])
    assert "Paid $2.50 for 1 job." in call("bill", "--db", db).said


def test_a_job_that_is_not_there_is_named(db):
    called = call("bill", "nobody", "--db", db)
    assert called.code == 2
    assert "no job 'nobody'" in called.err


def test_a_slot_shows_the_instance_hours_that_are_paid_not_its_last_report(db):
    """4 spot decided; in the second slot 3 spot from the report at 5 minutes, none from that at 25 minutes."""
    with open_store(db) as store:
        none = [reported("lora", START + STEP + pd.Timedelta(minutes=25), spot=0)]
        write_rows(store, "reports", none)
    answer = call("bill", "lora", "--db", db, "--json")
    slots = answer.value["slots"]
    assert slots[1]["spot"] == 0
    assert [row["spot_hours"] for row in slots] == pytest.approx([2.0, 3 * 25 / 60, 0.5, 0.0])
    assert [row["on_demand_hours"] for row in slots] == pytest.approx([0.0, 0.0, 0.5, 1.0])
    for row, price in zip(slots, (1.0, 1.0, 2.0, 0.0), strict=True):
        assert row["paid_usd"] == pytest.approx(row["spot_hours"] * price + row["on_demand_hours"] * 4)
    shown = next(line for line in call("bill", "lora", "--db", db).out.splitlines() if "23:30" in line)
    assert "1.25" in shown
