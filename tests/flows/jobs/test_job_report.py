"""Progress reports of a job: refused values, their effect on the next plan, and no use before they are known (M1.2)."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from advice_kit import (
    AHAP,
    BEGIN,
    SETTINGS,
    SOURCE,
    STEP,
    add_job,
    decided_row,
    hold,
    new_store,
    opened,
    request,
    row_of,
    turn_at,
)
from command_kit import call
from forms_kit import quick_first

from slackwater.flows.jobs.predicted import predicted_work
from slackwater.flows.ledger.jobs import find_job
from slackwater.flows.ledger.reports import (
    Report,
    counting,
    differences,
    every_report,
    reports_of,
    save_report,
)
from slackwater.flows.places import find_market
from slackwater.flows.turn.pool import read_pool
from slackwater.flows.turn.score import ended_jobs
from slackwater.flows.turn.stages import decide_jobs
from slackwater.flows.turn.work import Work
from slackwater.optimization.job.definition import Allocation
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.store.connection import open_store

LATER = pd.Timedelta("10min")
#: The forecasts do not matter here.
QUICK = SETTINGS.model_copy(update={"models": ("last_value",), "planner": "last_value"})


def report(slot=2.0, **terms):
    when = BEGIN + slot * STEP
    return Report(**{"job": "demo", "reported_at": when, "known_at": when, **terms})


def kept(store, *reports):
    return [save_report(store, one, find_job(store, one.job)) for one in reports]


# Stored reports and the reports that count


def test_a_report_comes_back_as_it_was_said(jobs):
    first = report(1, progress=3.5, on_demand=1, spot=4, note="from the trainer's log")
    second = report(2, asked=4, granted=2, lost=1, held_minutes=90.0)
    third = report(2.5, finished=True, restart_minutes=6.5)
    assert kept(jobs, first, second, third) == [(first, True), (second, True), (third, True)]
    assert reports_of(jobs, "demo") == [first, second, third]


def test_the_same_again_adds_nothing(jobs):
    one = report(progress=3.0, spot=2)
    kept(jobs, one)
    assert kept(jobs, one) == [(one, False)]
    assert len(every_report(jobs, ["demo"])) == 1


def test_a_correction_is_a_new_row_and_the_newest_known_counts(jobs):
    wrong, right = report(progress=9.0), report(progress=4.0)
    kept(jobs, wrong)
    ((corrected, added),) = kept(jobs, right)
    assert added
    assert (corrected.known_at, corrected.revision) == (wrong.known_at, 1)
    assert reports_of(jobs, "demo") == [corrected]
    late = report(progress=5.0, known_at=BEGIN + 3 * STEP)
    kept(jobs, late)
    assert [one.progress for one in reports_of(jobs, "demo", known_at=BEGIN + 2.5 * STEP)] == [4.0]
    assert [one.progress for one in reports_of(jobs, "demo", known_at=BEGIN + 3 * STEP)] == [5.0]
    assert [one.progress for one in every_report(jobs, ["demo"])] == [9.0, 4.0, 5.0]
    # without a later time, a correction becomes known with the report that it corrects
    ((again, _),) = kept(jobs, report(progress=6.0))
    assert again.known_at == late.known_at
    assert [one.progress for one in reports_of(jobs, "demo")] == [6.0]


def test_a_report_never_counts_before_its_time_nor_before_it_was_known():
    about_later = report(4, progress=9.0, known_at=BEGIN + 4 * STEP)
    learned_later = report(1, progress=2.0, known_at=BEGIN + 3 * STEP)
    both = [about_later, learned_later]
    assert counting(both, known_at=BEGIN + 2 * STEP) == []
    assert counting(both, known_at=BEGIN + 3 * STEP) == [learned_later]
    assert counting(both) == [learned_later, about_later]


#: Reports that are refused after a report of 5 instance-hours at slot 2, and the words of the error.
REFUSED = (
    (report(-1, progress=1.0), "a time after its start"),
    (report(13, spot=1), "after its deadline"),
    (report(finished=True, withdrawn=True), "finished and withdrawn"),
    (report(), "an empty report"),
    (report(boot_minutes=-1.0), "boot_minutes of -1"),
    (report(restart_minutes=float("nan")), "restart_minutes of nan"),
    (report(asked=4), "say so with --granted N"),
    (report(granted=4), "give the number requested with --asked N"),
    (report(asked=4, granted=5), "granted = 5 .* expected 0 to 4"),
    (report(asked=-1, granted=0), "asked = -1"),
    (report(lost=0), "lost = 0"),
    (report(held_minutes=20_000.0), "held_minutes = 20000"),
    (report(progress=-0.5), "0 to its workload of 20 instance_hours"),
    (report(progress=20.5), "0 to its workload of 20 instance_hours"),
    (report(progress=float("nan")), "0 to its workload"),
    (report(progress=float("inf")), "0 to its workload"),
    (report(on_demand=-1), "-1 on-demand instances"),
    (report(spot=10**9), "1000000000 spot instances"),
    (report(progress=3.0, finished=True), "finished with 3 of 20"),
    (report(progress=3.0, known_at=BEGIN), "known at"),
    (report(3, progress=4.0), "no less than the 5 instance_hours"),
    (report(1, progress=6.0), "no more than the 5 instance_hours"),
    (report(1, finished=True), "no more than the 5 instance_hours"),
)


def test_what_cannot_be_is_refused_and_leaves_nothing(jobs):
    kept(jobs, report(2, progress=5.0))
    before = every_report(jobs, ["demo"])
    for said, words in REFUSED:
        with pytest.raises(JobError, match=words):
            kept(jobs, said)
        assert every_report(jobs, ["demo"]) == before, said


def test_an_unknown_job_is_named(jobs):
    with pytest.raises(JobError, match="no job 'nobody'"):
        kept(jobs, report(job="nobody", progress=1.0))


def test_what_differs_from_the_advice_or_the_bounds_is_said_but_kept(jobs):
    stored = find_job(jobs, "demo")
    advised = {BEGIN + STEP: Allocation(2, 3)}
    assert differences(report(2, on_demand=2, spot=3), stored, advised) == []
    (told,) = differences(report(2, on_demand=2, spot=1), stored, advised)
    assert "2 on-demand and 3 spot, reported: 2 and 1" in told
    (told,) = differences(report(1.5, on_demand=2), stored, advised)  # in the middle of the slot
    assert "reported: 2 and 0" in told
    (told,) = differences(report(5, spot=11), stored, advised)
    assert "bounds are 1 to 8: plans count 8" in told
    assert differences(report(2, progress=1.0), stored, advised) == []


# Effect of reports on the next plan


def test_without_reports_a_decision_is_as_before(market):
    row = decided_row(market, 4, decided=hold((1, 2), 4))
    assert row["progress_from"] == "decided"
    assert row["progress_reported_at"] is None
    assert row == decided_row(market, 4, decided=hold((1, 2), 4), reports=[])


def test_the_next_plan_starts_from_what_was_reported_and_goes_on_with_what_was_decided(market):
    decided = hold((2, 0), 6)
    said = report(4, progress=1.0, on_demand=2)
    at_once = opened(market, 4, decided=decided, reports=[said])
    assert at_once.live.progress().done == pytest.approx(1.0)
    assert at_once.live.progress().n_previous == 2
    later = opened(market, 6, decided=decided, reports=[said])
    assert later.live.progress().done == pytest.approx(1.0 + 2 * 0.5 * 2)
    assert later.progress_report == said
    row = decided_row(market, 6, decided=decided, reports=[said])
    assert row["progress_from"] == "reported"
    assert row["progress"] == pytest.approx(3.0)
    assert row["progress_reported_at"] == said.reported_at.isoformat()
    reckoned = opened(market, 6, decided=decided).live.progress()
    # two minutes of boot and three of restart, in six slots of two instances
    assert reckoned.done == pytest.approx(2 * (3.0 - 5 / 60))


def test_a_report_inside_a_slot_is_carried_to_its_end(market):
    said = report(3.5, progress=2.0, on_demand=4)
    progress = opened(market, 4, decided=hold((2, 0), 4), reports=[said]).live.progress()
    assert progress.done == pytest.approx(2.0 + 0.5 * 0.5 * 4)
    assert progress.n_previous == 4
    of_decision = opened(
        market, 4, decided=hold((2, 0), 4), reports=[report(3.5, progress=2.0)]
    ).live.progress()
    assert of_decision.done == pytest.approx(2.0 + 0.5 * 0.5 * 2)


def test_counts_alone_change_what_is_held_and_not_the_work(market):
    decided = hold((2, 0), 4)
    said = report(4, on_demand=1, spot=0)
    with_report, without = (opened(market, 4, decided=decided, reports=one) for one in ([said], []))
    assert with_report.live.progress().done == without.live.progress().done
    assert with_report.live.progress().n_previous == 1
    assert with_report.progress_report is None


def test_measured_times_of_the_world_replace_stated_ones_from_when_they_are_known(market):
    reports = [report(1, boot_minutes=5.0), report(2, boot_minutes=3.0, on_demand_wait_minutes=10.0)]
    earlier, later = (opened(market, slot, decided={}, reports=reports).run.times for slot in (0, 2))
    assert (earlier.boot, earlier.on_demand_wait) == (120.0, 0.0)
    assert (later.boot, later.on_demand_wait, later.restart) == (300.0, 600.0, earlier.restart)


def test_replays_of_an_ended_job_meet_the_times_that_were_measured(tmp_path):
    with new_store(tmp_path) as store:
        job, turn = add_job(store), turn_at(store, 12)
        place = find_market(store, f"{job.request.market}@{SOURCE}", at=turn.at, settings=SETTINGS)
        later = turn.at + STEP
        boots = []
        for measured in ([], [report(1, boot_minutes=5.0)], [report(2, boot_minutes=9.0, known_at=later)]):
            kept(store, *measured)
            (ended,) = ended_jobs(turn, [(job, (place,))])
            boots.append(ended.run.times.boot)
        assert boots == [120.0, 300.0, 300.0]


def test_more_than_the_job_may_hold_counts_as_its_most_and_less_than_its_least_as_none(market):
    asked = request(n_min=3)
    many = opened(market, 4, asked=asked, decided={}, reports=[report(4, spot=30)])
    assert many.live.progress().n_previous == 8
    few = opened(market, 4, asked=asked, decided={}, reports=[report(4, spot=2)])
    assert few.live.progress().n_previous == 0


@pytest.mark.parametrize("state", ["finished", "withdrawn"])
def test_a_report_of_its_end_ends_the_job(market, state):
    reports = [report(3, **{state: True})]
    running = opened(market, 4, decided=hold((1, 0), 4), reports=reports)
    assert running.live.is_finished
    row = decided_row(market, 4, decided=hold((1, 0), 4), reports=reports)
    assert (row["on_demand"], row["spot"], row["progress_share"]) == (0, 0, 1.0)
    assert row["planned"] is None


def test_a_job_that_was_thought_done_goes_on_when_the_report_says_otherwise(market):
    decided = hold((8, 0), 8)
    thought = opened(market, 8, decided=decided)
    assert thought.live.is_finished
    behind = opened(market, 8, decided=decided, reports=[report(8, progress=12.0, on_demand=8)])
    assert not behind.live.is_finished
    assert behind.live.progress().done == pytest.approx(12.0)
    assert decided_row(market, 8, decided=decided, reports=[report(8, progress=12.0)])["on_demand"] >= 0


@pytest.mark.parametrize("policy", quick_first(["Stochastic", "AHANP(0.9)", "UP", AHAP, "MSU", "OD-only"], 2))
def test_scrambling_what_became_known_later_changes_no_decision(market, policy):
    """Reports with a later known_at, or about a later time, change no earlier decision (M1.2, M4.9)."""
    rng = np.random.default_rng(11)
    decided = hold((1, 1), 5)
    known = [report(2, progress=2.0, spot=2), report(4, progress=4.0, on_demand=1)]
    rows = []
    for _ in range(3):
        scrambled = [
            report(slot, progress=float(rng.uniform(0, 20)), spot=int(rng.integers(9)),
                   known_at=BEGIN + max(slot, 5) * STEP + pd.Timedelta(int(rng.integers(1, 600)), "s"))
            for slot in (1, 2, 4, 5, 7)
        ]  # fmt: skip
        running = opened(market, 5, decided=decided, reports=[*scrambled, *known])
        rows.append(row_of(running, policy))
    alone = opened(market, 5, decided=decided, reports=known)
    assert rows == [row_of(alone, policy)] * 3


def test_a_report_known_by_the_slot_does_change_it(market):
    """Counterpart of the test above: a report known in time does change the decision."""
    far, near = (
        decided_row(market, 9, decided={}, reports=[report(9, progress=done)]) for done in (1.0, 19.0)
    )
    assert (far["on_demand"], far["spot"]) != (near["on_demand"], near["spot"])


def test_the_prediction_for_a_report_is_the_model_from_the_one_before(market):
    running = opened(market, 6, decided=hold((2, 0), 7))
    assert predicted_work(running, BEGIN + 4 * STEP, []) == pytest.approx(2 * (2.0 - 5 / 60))
    assert predicted_work(running, BEGIN + 4.5 * STEP, []) == pytest.approx(2 * (2.25 - 5 / 60))
    before = [report(2, progress=1.0)]
    assert predicted_work(running, BEGIN + 4 * STEP, before) == pytest.approx(3.0)
    assert predicted_work(running, BEGIN + 40 * STEP, before) is None  # the record ends earlier


@pytest.mark.slow  # the quick forms: a backfill ends with the tables of live turns; a correction counts
def test_many_turns_at_once_start_from_reports_as_turns_one_by_one_do(tmp_path):
    """A backfill decides like live turns, including a late report and a correction."""
    answers = []
    for name, size in (("one by one", 1), ("at once", 6)):
        (tmp_path / name).mkdir()
        with new_store(tmp_path / name) as store:
            stored = add_job(store)
            kept(store, report(2, progress=9.0), report(2, progress=1.0, known_at=BEGIN + 3.5 * STEP))
            kept(store, report(4, spot=5, known_at=BEGIN + 5 * STEP))
            text, pool, rows = f"{stored.request.market}@{SOURCE}", read_pool(turn_at(store)), []
            for first in range(0, 6, size):
                slots = range(first, first + size)
                turns = [replace(turn_at(store, slot), settings=QUICK) for slot in slots]
                found = [find_market(store, text, at=turn.at, settings=QUICK) for turn in turns]
                works = [Work(markets=(one,), running=((stored, one),), ended=()) for one in found]
                rows += [one.rows for one in decide_jobs(turns, works, pool)]
            answers.append(rows)
    assert answers[0] == answers[1]
    told = [(row["progress_from"], row["progress_reported_at"] is not None) for (row,) in answers[0]]
    assert told == [("decided", False)] * 2 + [("reported", True)] * 4
    progress = [row["progress"] for (row,) in answers[0]]
    assert progress[2] == 9.0
    assert progress[4] < progress[3]  # the correction is known by then
    assert answers[0][4][0]["reason"] != answers[0][3][0]["reason"]


# The commands


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a settings file for fast planning."""
    file = tmp_path_factory.mktemp("small") / "slackwater.toml"
    file.write_text('models = ["last_value"]\nplanner = "last_value"\nhistory_days = 3\nrisk_paths = 10\n')
    return file


def test_the_commands_report_plan_and_show(tmp_path, small):
    with new_store(tmp_path) as store:
        add_job(store)
    db = ("--db", tmp_path / "w.duckdb")
    at = (BEGIN + 2 * STEP).isoformat()
    plan = ("plan", "demo", *db, "--policy", "UP", "--settings", small, "--json", "--at")
    before = json.loads(call(*plan, at)[1])
    assert before["progress_from"] == "decided"
    words = (
        "job",
        "report",
        "demo",
        *db,
        "--at",
        at,
        "--progress-share",
        "0.4",
        "--spot",
        "3",
        "--note",
        "x",
        "--boot-minutes",
        "3",
    )
    code, out, _ = call(*words, "--json")
    said = json.loads(out)
    assert code == 0
    assert said["added"] is True
    assert (said["progress"], said["progress_share"], said["spot"]) == (8.0, 0.4, 3)
    assert pd.Timestamp(said["counts_from"]) == BEGIN + 2 * STEP
    assert json.loads(call(*words, "--json")[1])["added"] is False
    after = json.loads(call(*plan, at)[1])
    assert (after["progress_from"], after["progress"], after["held_before"]) == ("reported", 8.0, 3)
    earlier = (BEGIN + STEP).isoformat()
    assert json.loads(call(*plan, earlier)[1])["progress_from"] == "decided"
    shown = json.loads(call("job", "show", "demo", *db, "--json")[1])
    assert [(row["progress"], row["predicted"], row["off"]) for row in shown["reports"]] == [(8.0, 0.0, 8.0)]
    assert {row["key"]: row["origin"] for row in shown["times"]}["boot_minutes"] == "measured"
    table = call("job", "show", "demo", *db)[1]
    assert "progress was 8 instance-hours more than predicted" in table
    done = ("--at", (BEGIN + 3 * STEP).isoformat())
    call("job", "report", "demo", *db, *done, "--finished")
    assert json.loads(call("job", "list", *db, *done, "--json")[1])["jobs"][0]["state"] == "finished"
    code, _, err = call(*plan, (BEGIN + 4 * STEP).isoformat())
    assert code == 2
    assert "job 'demo' has done its work by" in err


def test_a_withdrawn_job_is_decided_no_more_and_its_end_is_shown(tmp_path, small):
    with new_store(tmp_path) as store:
        add_job(store)
    db = ("--db", tmp_path / "w.duckdb")
    at = (BEGIN + 2 * STEP).isoformat()
    assert call("job", "report", "demo", *db, "--at", at, "--progress-share", "0.4", "--withdrawn")[0] == 0
    (row,) = json.loads(call("job", "list", *db, "--at", at, "--json")[1])["jobs"]
    assert row["state"] == "withdrawn"
    assert row["ending"].startswith("withdrawn by its owner at ")
    assert row["ending"].endswith(" with 40 % done")
    later = (BEGIN + 3 * STEP).isoformat()
    code, _, err = call("plan", "demo", *db, "--policy", "UP", "--settings", small, "--at", later)
    assert code == 2
    assert "job 'demo' was withdrawn" in err
    assert "MISSED" not in call("job", "list", *db)[1]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--progress", "3", "--progress-share", "0.2"), "--progress and --progress-share"),
        (("--tokens", "300"), "not in tokens"),
        (("--progress-share", "1.2"), "0 to 1"),
        (("--progress", "3", "--at", "soonish"), "--at"),
        (("--progress", "nan"), "'nan' is not a number"),
        ((), "an empty report"),
    ],
)
def test_a_report_that_cannot_be_is_one_line(jobs, tmp_path, words, part):
    jobs.close()
    at = () if "--at" in words else ("--at", BEGIN.isoformat())
    code, _, err = call("job", "report", "demo", "--db", tmp_path / "w.duckdb", *at, *words)
    assert code == 2
    assert part in err
    assert len(err.splitlines()) == 1


def test_tokens_count_for_a_job_in_tokens(tmp_path):
    with open_store(tmp_path / "w.duckdb") as store:
        add_job(
            store,
            name="tokens",
            source=SOURCE,
            workload={"amount": 2e9, "unit": "tokens"},
            throughput={"form": "linear", "alpha": 1e8},
        )
    words = ("job", "report", "tokens", "--db", tmp_path / "w.duckdb", "--at", BEGIN.isoformat(), "--json")
    said = json.loads(call(*words, "--tokens", "5e8")[1])
    assert (said["progress"], said["progress_share"], said["workload_unit"]) == (5e8, 0.25, "tokens")
