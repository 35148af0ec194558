"""Changes of job terms: allowed changes, the time from which they count, no use before then, and scoring (M2.9, M1.2)."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest
from advice_kit import (
    BEGIN,
    MARKET,
    SETTINGS,
    SOURCE,
    STEP,
    add_job,
    hold,
    new_store,
    opened,
    request,
    turn_at,
)
from command_kit import call
from forms_kit import quick_first
from make import make_request, make_turn
from test_turn import AT, LIGHT

from slackwater.flows.backfill.run import Backfill, backfill, slots_between
from slackwater.flows.config import Settings
from slackwater.flows.jobs.change import change_of, with_terms
from slackwater.flows.ledger.decisions import decisions_of, save_decisions
from slackwater.flows.ledger.jobs import find_job, save_jobs, stored_jobs, terms_of
from slackwater.flows.ledger.reports import Report, save_report
from slackwater.flows.ledger.terms import save_change
from slackwater.flows.monitoring.completeness import SlotMap, read_facts
from slackwater.flows.places import as_filed
from slackwater.flows.plans.decisions import decisions_as_of, opened_to_decide
from slackwater.flows.query import named_job
from slackwater.flows.turn import stages
from slackwater.flows.turn.pool import read_pool
from slackwater.flows.turn.stages import TurnProgress, score_jobs
from slackwater.flows.turn.work import find_work
from slackwater.optimization.job.request import check_change, parse_request, term_changes
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import open_store

HOUR = pd.Timedelta("1h")
#: The forecasts do not matter here.
QUICK = SETTINGS.model_copy(update={"models": ("last_value",), "planner": "last_value"})


def at(slot):
    return BEGIN + slot * STEP


def quick_turn(store, slot):
    return replace(turn_at(store, slot), settings=QUICK)


@pytest.fixture
def busy(tmp_path):
    """Return a warehouse with the job and its market, next to a settings file for fast planning."""
    with new_store(tmp_path) as store:
        add_job(store)
    file = tmp_path / "slackwater.toml"
    file.write_text('models = ["last_value"]\nplanner = "last_value"\nhistory_days = 3\nrisk_paths = 10\n')
    return tmp_path / "w.duckdb"


def due(slot, **terms):
    """Return the job with its deadline at the end of ``slot`` slots."""
    return with_terms(request(), {"deadline": at(slot), **terms})


# Stored terms and the times at which they are visible.


def test_terms_are_those_known_at_the_time_they_are_read_for(jobs):
    assert save_change(jobs, due(20), at=at(4))
    assert save_change(jobs, due(9), at=at(6))
    known = {slot: find_job(jobs, "demo", known_at=at(slot)).deadline for slot in (0, 3.99, 4, 5, 6, 11)}
    assert known == {0: at(12), 3.99: at(12), 4: at(20), 5: at(20), 6: at(9), 11: at(9)}
    assert find_job(jobs, "demo").deadline == at(9)
    (early,) = stored_jobs(jobs, known_at=at(0))
    (late,) = stored_jobs(jobs)
    assert (early.changed_at, early.known_at, late.known_at) == (None, BEGIN, at(6))
    assert [(one.known_at, one.deadline) for one in terms_of(jobs, late)] == [
        (BEGIN, at(12)), (at(4), at(20)), (at(6), at(9)),
    ]  # fmt: skip


def test_the_same_change_twice_is_kept_once_and_the_newest_of_one_time_counts(jobs):
    assert [save_change(jobs, due(20), at=at(4)) for _ in range(2)] == [True, False]
    assert save_change(jobs, due(9), at=at(4))
    assert save_change(jobs, due(12), at=at(4))  # the original deadline
    rows = read_rows(jobs, "terms")
    assert rows["revision"].tolist() == [0, 1, 2]
    assert rows["deadline_at"].tolist() == [at(20), at(9), at(12)]
    assert find_job(jobs, "demo").deadline == at(12)
    assert not save_change(jobs, due(12), at=at(30)), "it is that already, whenever it is asked for"


def test_adding_the_job_again_is_not_taking_the_change_back(jobs):
    save_change(jobs, due(20), at=at(4))
    for same in (request(), due(20)):
        assert save_jobs(jobs, [same], origin="user", at=at(5), step=STEP) == 0
    assert find_job(jobs, "demo").deadline == at(20)
    with pytest.raises(JobError, match=r"other terms \(deadline\).*`slackwater job change`"):
        save_jobs(jobs, [due(15)], origin="user", at=at(5), step=STEP)


#: Changes that are refused, the slots at which they are requested, and the words of the error.
REFUSED = (
    ({"deadline": at(1.5)}, 2, "leaves no whole slot after .* 01:30.*expected .* 02:00 UTC or later.*--finished"),
    ({"deadline": at(2.9)}, 2, "leaves no whole slot"),
    ({"deadline": at(-3)}, 0, "leaves no whole slot"),
    ({"deadline": at(5000)}, 2, "days after its start"),
    ({"deadline": at(30)}, 12, "ended at .*expected a job whose deadline is in the future"),
    ({"deadline": at(30)}, -1, "was added at .*expected a time at or after"),
    ({"n_min": 2}, 2, r"n_min = 2, where the job has 1; expected a change of deadline, workload.amount"),
    ({"n_max": 4}, 2, "n_max = 4; expected at least the 8 of now"),
    ({"workload.unit": "slots"}, 2, "workload.unit = slots"),
    ({"throughput": {"form": "linear", "alpha": 2.0}}, 2, "throughput.alpha = 2.0"),
    ({"checkpoint": {"resumable": False}}, 2, "checkpoint.resumable = False"),
    ({"start": at(1)}, 2, "start = "),
    ({"market": "lab/r1/z2/a3-highgpu-1g"}, 2, "market = lab/r1/z2/a3-highgpu-1g"),
    ({"markets": ("lab/*/*/a3-highgpu-1g",)}, 2, "markets = "),
    ({"value_usd": 1e12}, 2, "at most 1,000,000,000 USD"),
)  # fmt: skip


def test_what_cannot_be_changed_is_refused_and_nothing_is_kept(jobs):
    for terms, when, words in REFUSED:
        with pytest.raises(JobError, match=words):
            save_change(jobs, with_terms(request(), terms), at=at(when))
        assert read_rows(jobs, "terms").empty, terms


def test_a_job_that_has_ended_or_was_changed_later_is_not_changed(jobs):
    save_change(jobs, due(20), at=at(4))
    with pytest.raises(JobError, match=r"had its terms changed at .*expected a time at or after that"):
        save_change(jobs, due(16), at=at(3))
    said = Report(job="demo", reported_at=at(5), known_at=at(5), finished=True)
    save_report(jobs, said, find_job(jobs, "demo"))
    with pytest.raises(JobError, match="reported as finished at"):
        save_change(jobs, due(16), at=at(6))
    save_change(jobs, due(18), at=at(4.5))  # before the job was reported as finished
    scored = {
        "job": "demo",
        "policy": "UP",
        "scored_at": at(18),
        "utility_usd": 0.0,
        "cost_usd": 0.0,
        "on_time": True,
    }
    write_rows(jobs, "outcomes", [scored])
    with pytest.raises(JobError, match="scored by a later turn"):
        save_change(jobs, due(17), at=at(4.6))


def test_wrong_values_are_told_with_their_key(jobs):
    for terms, words in (
        ({"decay": 0.5}, "decay = 0.5: .*greater than 1"),
        ({"workload.amount": 0}, "workload.amount = 0: "),
    ):
        with pytest.raises(JobError, match=words):
            with_terms(request(), terms)


def test_changes_are_told_by_the_keys_of_a_job_file():
    after = with_terms(request(), {"workload.amount": 30.0, "n_max": 12, "value_usd": None, "decay": 2.0})
    check_change(request(), after)
    assert [(one.term, one.before, one.after) for one in term_changes(request(), after)] == [
        ("n_max", 8, 12), ("value_usd", 120.0, None), ("decay", 1.5, 2.0), ("workload.amount", 20.0, 30.0),
    ]  # fmt: skip


def test_a_file_is_placed_where_the_job_is(jobs):
    """Fields missing in the file are taken from the stored job; deadline_in counts from the start of the job."""
    stored = find_job(jobs, "demo")
    told = request().model_dump(exclude={"start", "deadline", "market", "source"}) | {"deadline_in": "8h"}
    assert as_filed(parse_request(told, "test"), stored) == due(16)
    named = parse_request(told | {"market": f"{MARKET}@{SOURCE}"}, "test")
    assert as_filed(named, stored) == due(16)
    other = as_filed(parse_request(told | {"market": "lab/r1/z2/a3-highgpu-1g"}, "test"), stored)
    assert (other.market, other.source) == ("lab/r1/z2/a3-highgpu-1g", None)


# Progress is preserved.


@pytest.mark.parametrize(
    "terms",
    quick_first(
        [due(12, **{"workload.amount": 40.0}), due(7), due(16), due(12, n_max=12, value_usd=None, decay=3.0)],
        2,
    ),
)
def test_what_was_done_counts_under_the_new_terms(market, terms):
    before, after = (opened(market, 6, asked=one, decided=hold((2, 2), 6)).live for one in (request(), terms))
    assert before.progress() == after.progress()
    assert before.progress().done > 5
    assert after.deadline == pd.Timestamp(terms.deadline)


def test_a_change_tells_whether_it_can_be_done_and_from_which_slot_it_counts(tmp_path):
    with new_store(tmp_path) as store:
        stored = add_job(store)
        turn = turn_at(store, 4)
        rows = [{"slot": at(slot), "market": MARKET, "on_demand": 4, "spot": 0} for slot in range(5)]
        found = change_of(turn, stored, due(8), rows)
        assert (found.counts_from, found.shortfall, found.unknown) == (at(5), None, ())
        short = change_of(turn, stored, due(6), rows)
        assert short.shortfall.startswith(f"cannot be done by {at(6):%Y-%m-%d %H:%M} UTC: ")
        with pytest.raises(
            JobError, match=r"workload.amount = 5 .*expected more than the 7.667 instance_hours done"
        ):
            change_of(turn, stored, due(12, **{"workload.amount": 5.0}), rows)
        lost = change_of(replace(turn, at=pd.Timestamp("2001-01-01", tz="UTC")), stored, due(8), rows)
        assert "has no observations" in lost.unknown[0]


# Turns and backfills.


def test_a_plan_is_made_by_the_terms_known_at_its_time(tmp_path):
    with new_store(tmp_path) as store:
        add_job(store)
        before = decisions_as_of(quick_turn(store, 3)).rows
        save_change(store, due(7), at=at(4))
        assert decisions_as_of(quick_turn(store, 3)).rows == before
        turn = quick_turn(store, 3)
        assert opened_to_decide(turn, named_job(turn, "demo")).live.run.deadline_slots == 12
        turn = quick_turn(store, 4)
        assert opened_to_decide(turn, named_job(turn, "demo")).live.run.deadline_slots == 7
        (after,) = decisions_as_of(quick_turn(store, 4)).rows
        assert after["deadline"] == at(7).isoformat()
        own_end = replace(quick_turn(store, 3), own_end=True)
        assert own_end.terms_at is None, "a turn at each market's own end is of no one time"


@pytest.fixture(scope="module")
def settings(tmp_path_factory) -> Settings:
    pool = tmp_path_factory.mktemp("pool") / "pool.toml"
    pool.write_text(LIGHT)
    return Settings(
        models=("last_value",), planner="last_value", measured_origins=3, horizon=3, planning_horizon=6, max_markets=1,
        simulated_days=4, history_days=3, risk_paths=10, pool=pool,
    )  # fmt: skip


def live_turn(store, settings, when):
    turn = make_turn(store, when, settings)
    found = stages.ingest(turn, TurnProgress())
    for stage in stages.STAGES[1:5]:
        found = stage(turn, found)
    return found


def made_again(db, settings, slots):
    slot_range = slots_between(slots[0], slots[-1], slot=STEP)
    return backfill(Backfill(db=db, slot_range=slot_range, settings=settings, workers=1))


@pytest.mark.slow
def test_a_backfill_of_slots_around_a_change_decides_as_live_turns_did(tmp_path, settings):
    """Slots before the change use the old terms even if the change is known, later slots the new terms; issued rows stay."""
    slots = list(pd.date_range(AT, periods=3, freq=STEP))
    work = {"amount": 17.5, "unit": "instance_hours"}
    job = make_request("mine", at=AT, market="simulated/east/east-a/h100", deadline_in="12h", workload=work)
    hasty = with_terms(job, {"deadline": AT + 5 * STEP})
    live, late = tmp_path / "live.duckdb", tmp_path / "late.duckdb"
    with open_store(live) as store:
        save_jobs(store, [job], origin="user", at=AT, step=STEP)
    shutil.copy(live, late)
    with open_store(live) as store:
        live_turn(store, settings, slots[0])
        calm = decisions_as_of(make_turn(store, slots[1], settings)).rows
        save_change(store, hasty, at=slots[1])
        for when in slots[1:]:
            live_turn(store, settings, when)
        wanted = decisions_of(store, "mine")
    ends = [pd.Timestamp(row["deadline"]) for row in wanted]
    assert ends == [AT + 12 * HOUR] + [AT + 5 * STEP] * 2
    assert wanted[1]["on_demand"] > calm[0]["on_demand"] == 0, "there is little spot in that slot"
    with open_store(late) as store:
        save_change(store, hasty, at=slots[1])  # known before the first slot is backfilled
    made_again(late, settings, slots)
    with open_store(late) as store:
        assert decisions_of(store, "mine") == wanted
    # A later change that is dated to slots already decided leaves their decisions unchanged.
    with open_store(late) as store:
        assert save_change(store, with_terms(hasty, {"deadline": AT + 8 * STEP}), at=slots[2])
    made_again(late, settings, slots)
    with open_store(late) as store:
        assert decisions_of(store, "mine") == wanted


def test_a_job_is_scored_by_terms_that_held_from_its_first_slot_else_not_at_all(tmp_path, settings):
    """A replay would reveal the changed terms to every policy at the start of the job."""
    settings = settings.model_copy(update={"history_days": SETTINGS.history_days})
    with new_store(tmp_path) as store:
        for name in ("early", "late", "never"):
            save_jobs(store, [request(name)], origin="user", at=BEGIN, step=STEP)
        save_change(store, with_terms(request("early"), {"deadline": at(8), "value_usd": None}), at=BEGIN)
        save_change(store, with_terms(request("late"), {"deadline": at(8)}), at=at(2))
        assert [job.changed_under_way for job in stored_jobs(store)] == [False, True, False]
        turn = make_turn(store, at(12), settings)
        pool = read_pool(turn)
        work = find_work(turn, [], scored=pool.settled_jobs())
        assert {job.request.name for job, _ in work.ended} == {"early", "late", "never"}
        (names,), pool = score_jobs([turn], [work], pool)
        assert set(names) == {"early", "never"}
        slots = {
            row["job"]: len(json.loads(row["allocations"]))
            for row in read_rows(store, "outcomes", where={"policy": "OD-only"}).to_dict("records")
        }
        assert slots["early"] <= 8 < slots["never"], "each is done by the deadline that it had"
        assert set(read_rows(store, "weights")["job"]) == {"early", "never"}
        valued = store.execute(
            "SELECT job, bool_or(utility_usd IS NOT NULL) FROM job_outcomes GROUP BY job ORDER BY job"
        )
        assert [tuple(row) for row in valued] == [("early", False), ("never", True)], (
            "a value that was taken back counts for none"
        )
        # Completeness uses the terms known at the end of the window; jobs that are not replayed have no score due.
        for last, ends in (
            (1, {"late": 12, "early": 8, "never": 12}),
            (12, {"late": 8, "early": 8, "never": 12}),
        ):
            window = SlotMap(first=BEGIN, last=at(last), step=STEP, at=at(last))
            facts = read_facts(store, settings, window)
            found = {row["name"]: row for row in facts.jobs.to_dict("records")}
            assert {name: (row["deadline"] - BEGIN) // STEP for name, row in found.items()} == ends
            assert found["late"]["replayed"] == (last == 1)
            assert all(found[name]["replayed"] for name in ("early", "never"))


# The command.


def changed(db, *words, code=0):
    found = call("job", "change", *words, "--db", db, "--settings", db.with_name("slackwater.toml"), "--json")
    assert found.code == code, found.err
    return json.loads(found.out) if code == 0 else found.err


def test_the_command_changes_a_deadline_and_show_and_list_tell_it(busy):
    when = ("--at", at(2).isoformat())
    value = changed(busy, "demo", "--deadline", at(10).isoformat(), *when)
    assert value["changed"] is True
    assert value["changes"] == [
        {
            "term": "deadline",
            "before": f"{at(12):%Y-%m-%dT%H:%M:%SZ}",
            "after": f"{at(10):%Y-%m-%dT%H:%M:%SZ}",
        }
    ]
    assert pd.Timestamp(value["known_at"]) == pd.Timestamp(value["counts_from"]) == at(2)
    assert "no policy is replayed on it" in value["notes"][0]
    again = changed(busy, "demo", "--deadline", at(10).isoformat(), *when)
    assert (again["changed"], again["changes"], pd.Timestamp(again["known_at"])) == (False, [], at(2))
    told = call("job", "change", "demo", "--deadline-in", "4h", *when, "--db", busy)
    assert "Nothing changed: job demo already has these terms." in told.out
    shown = call("job", "show", "demo", "--db", busy, "--json").value
    assert [pd.Timestamp(one["known_at"]) for one in shown["terms"]] == [BEGIN, at(2)]
    assert [len(one["changes"]) for one in shown["terms"]] == [0, 1]
    assert pd.Timestamp(shown["job"]["deadline"]) == at(10)
    page = call("job", "show", "demo", "--db", busy).out
    assert "Changes of the terms" in page
    assert f"{at(10):%Y-%m-%d %H:%M} UTC" in page
    for time, end in ((at(1), at(12)), (at(2), at(10)), (None, at(10))):
        words = () if time is None else ("--at", time.isoformat())
        (row,) = call("job", "list", "--db", busy, *words, "--json").value["jobs"]
        assert pd.Timestamp(row["deadline"]) == end
    plan = (
        "plan",
        "demo",
        "--db",
        busy,
        "--policy",
        "UP",
        "--settings",
        busy.with_name("slackwater.toml"),
        "--json",
        "--at",
    )
    assert pd.Timestamp(call(*plan, at(1).isoformat()).value["deadline"]) == at(12)
    assert pd.Timestamp(call(*plan, at(2).isoformat()).value["deadline"]) == at(10)


def test_the_command_takes_a_file_and_single_terms(busy, tmp_path):
    file = tmp_path / "demo.toml"
    lines = ['name = "demo"', 'deadline_in = "9h"', "n_max = 10", "value_usd = 150.0",
             'workload = { amount = 25, unit = "instance_hours" }', 'throughput = { form = "linear" }',
             "checkpoint = { resumable = true, overhead_minutes = 3 }"]  # fmt: skip
    file.write_text("\n".join(lines))
    value = changed(busy, file, "--at", BEGIN.isoformat())
    assert [one["term"] for one in value["changes"]] == ["deadline", "n_max", "value_usd", "workload.amount"]
    assert pd.Timestamp(value["deadline"]) == at(18)
    assert value["notes"] == [], "known in its first slot: it is replayed like any other"
    assert changed(busy, file, "--at", BEGIN.isoformat())["changed"] is False
    more = ("--workload", 30, "--n-max", 12, "--value-usd", 90, "--decay", 2)
    value = changed(busy, "demo", *more, "--at", at(3).isoformat())
    assert [(one["term"], one["after"]) for one in value["changes"]] == [
        ("n_max", 12), ("value_usd", 90.0), ("decay", 2.0), ("workload.amount", 30.0),
    ]  # fmt: skip
    short = changed(busy, "demo", "--deadline-in", "1h", "--at", at(3).isoformat())
    assert short["shortfall"].startswith("cannot be done by")
    assert pd.Timestamp(short["deadline"]) == at(5)
    again = call(
        "job", "add", file, "--market", f"{MARKET}@{SOURCE}", "--db", busy, "--at", at(3).isoformat()
    )
    assert again.code == 2
    assert "`slackwater job change`" in again.err


def test_a_change_without_a_time_counts_from_the_records_end_and_no_earlier_than_what_was_decided(busy):
    with open_store(busy) as store:
        save_change(store, due(200), at=at(1))
    end = pd.Timestamp(changed(busy, "demo", "--deadline", at(210).isoformat())["known_at"])
    assert end == at(94), "the last slot of the market's record"
    with open_store(busy) as store:
        turn = quick_turn(store, 100)
        decided = decisions_as_of(turn).rows
        save_decisions(store, [(turn.run_id, row) for row in decided])
    value = changed(busy, "demo", "--deadline", at(205).isoformat())
    assert (pd.Timestamp(value["known_at"]), pd.Timestamp(value["counts_from"])) == (at(100), at(101))
    assert (
        value["notes"][0] == f"the decision already issued for {at(100):%Y-%m-%d %H:%M} UTC does not change"
    )


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("demo",), "nothing to change of job 'demo'"),
        (("demo", "--deadline", "soon"), "--deadline 'soon'"),
        (("demo", "--deadline-in", "12"), "--deadline-in"),
        (("demo", "--deadline", "2025-03-09T12:00Z", "--deadline-in", "3h"), "both --deadline and --deadline-in"),
        (("nobody", "--n-max", "9"), "no job 'nobody' in the warehouse; expected a known job (demo)"),
        (("none.toml",), "job file none.toml"),
        (("demo", "--deadline", "2025-03-12T12:00Z"), "ended at 2025-03-09 06:30 UTC"),
    ],
)  # fmt: skip
def test_the_command_refuses_in_one_line(busy, words, part):
    told = changed(busy, *words, code=2)
    assert part in told
    assert len(told.strip().splitlines()) == 1


def test_without_a_warehouse_none_is_made(tmp_path):
    found = call("job", "change", "demo", "--n-max", 9, "--db", tmp_path / "none.duckdb")
    assert (found.code, list(tmp_path.iterdir())) == (2, [])


KILLED = """
    import json, shutil, sys
    from pathlib import Path

    import slackwater.flows.jobs.change, slackwater.flows.jobs.command, slackwater.warehouse.exchange
    from command_kit import call
    from fault_moments import Child, done
    from slackwater.flows.ledger.jobs import find_job
    from slackwater.warehouse.store.connection import open_store

    base, folder, at, every = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])

    def change():
        return call("job", "change", "demo", "--deadline-in", "2h", "--at", at, "--db", "w.duckdb", "--json").value

    def rows():
        with open_store(Path("w.duckdb")) as store:
            return [list(map(str, row)) for row in store.execute("SELECT * FROM terms")]

    def fresh(number):
        here = folder / str(number)
        here.mkdir(parents=True)
        shutil.copy(base, here / "w.duckdb")
        return here

    whole = done(fresh("whole"), change)
    wanted, answers = done(folder / "whole", rows).answer, []
    for kill in range(1, len(whole.moments) + 1, every):
        here = fresh(kill)
        assert Child(here, change, kill_at=kill).wait().killed, kill
        before, again, after = done(here, lambda: [rows(), change(), rows()]).answer
        assert before in ([], wanted), (kill, before)
        answers.append(again["changed"])
        assert after == wanted, kill
    print(json.dumps({"wanted": wanted, "answers": answers}))
"""


@pytest.mark.slow
def test_killed_anywhere_a_rerun_ends_with_the_same_table(busy, tmp_path):
    code = "\n".join(line.removeprefix("    ") for line in KILLED.splitlines())
    ran = subprocess.run(
        [sys.executable, "-c", code, busy, tmp_path / "killed", at(2).isoformat(), "5"],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(found["wanted"]) == 1
    assert {True, False} == set(found["answers"]), "killed before the row was kept, and after it"
