"""The completeness map: the state of every market, stage and slot, from synthetic facts and from real turns (M1.3)."""

import shutil

import numpy as np
import pandas as pd
import pytest
from completeness_kit import completeness_of
from past_jobs import MARKETS, past_jobs
from storekit import count_row, counts
from test_turn import one_turn, small_settings

from slackwater.flows.config import Settings, read_settings
from slackwater.flows.ledger.stages import save_failure
from slackwater.flows.monitoring.completeness import STATES, ExpectedUpdate, Facts, SlotMap, classify
from slackwater.flows.monitoring.status import status_of
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.issued import write_rows
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_reader, open_store

HALF = pd.Timedelta(minutes=30)
FIRST = pd.Timestamp("2026-03-10T00:00Z")
SLOTS = pd.date_range(FIRST, periods=6, freq=HALF, unit="us")
A, B = ("aws/r/z/g", "s"), ("gcp/r/z/h", "s")
EMPTY_RUNS = ["slot", "stage", "status", "reason", "left_out"]


def utc(values) -> pd.Series:
    return pd.Series(pd.to_datetime(values, utc=True)).astype("datetime64[us, UTC]")


def seen_rows(market, ages, price_ages=None) -> pd.DataFrame:
    """Return a market whose newest count is ``ages`` minutes old in each slot (None: nothing known yet)."""
    counts = [
        None if age is None else slot - pd.Timedelta(minutes=age)
        for slot, age in zip(SLOTS, ages, strict=True)
    ]
    prices = [None if age is None else slot - pd.Timedelta(hours=age)
              for slot, age in zip(SLOTS, price_ages or [None] * 6, strict=True)]  # fmt: skip
    return pd.DataFrame(
        {
            "market": market[0],
            "source": market[1],
            "slot": SLOTS,
            "price_at": utc(prices),
            "count_at": utc(counts),
        }
    )


def issued_rows(market, places, **columns) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "market": market[0], "source": market[1], "slot": SLOTS[list(places)], "planned": True, "models": "markov",
            "newest_row": SLOTS[list(places)], "price_fallback": "", "count_fallback": "", "others_fell_back": "",
            "backfilled": False,
        }
    )  # fmt: skip
    return frame.assign(**columns)


def run_rows(*rows) -> pd.DataFrame:
    """Return ledger rows from tuples (place, stage, status, reason, left_out)."""
    frame = pd.DataFrame([(SLOTS[place], *rest) for place, *rest in rows], columns=EMPTY_RUNS)
    frame["slot"] = utc(frame["slot"])
    return frame


def job_row(name, market=A, *, start=0, deadline=4, created=None, finished=None, scored=None, **columns):
    times = {"created": created if created is not None else start, "start": start, "deadline": deadline,
             "finished": finished, "scored": scored}  # fmt: skip
    row = {key: None if place is None else FIRST + place * HALF for key, place in times.items()}
    return (
        {"name": name, "market": market[0], "source": market[1], "origin": "user", "replayed": True}
        | row
        | columns
    )


def facts_of(*, seen=None, issued=None, runs=None, jobs=(), decided=(), at=None, promises=None) -> Facts:
    columns = [
        "name",
        "market",
        "source",
        "origin",
        "replayed",
        "created",
        "start",
        "deadline",
        "finished",
        "scored",
    ]
    frame = pd.DataFrame(list(jobs), columns=columns)
    for name in columns[5:]:
        frame[name] = utc(frame[name])
    places = [
        (job, FIRST + place * HALF, *(there[0] if there else ("", ""))) for job, place, *there in decided
    ]
    decisions = pd.DataFrame(places, columns=["job", "slot", "market", "source"])
    decisions["slot"] = utc(decisions["slot"])
    return Facts(
        window=SlotMap(first=SLOTS[0], last=SLOTS[-1], step=HALF, at=at or SLOTS[-1] + HALF),
        planner="markov",
        promises=promises or (promise(A, "count"), promise(B, "count")),
        seen=seen if seen is not None else seen_rows(A, [0] * 6),
        issued=issued if issued is not None else issued_rows(A, range(6)),
        runs=runs if runs is not None else run_rows(),
        jobs=frame,
        decided=decisions,
    )


def promise(market, kind, **columns) -> ExpectedUpdate:
    ages = {"count": pd.Timedelta(minutes=90), "price": pd.Timedelta(hours=36)}
    values = {
        "sid": 1,
        "max_age": ages[kind],
        "every": HALF if kind == "count" else None,
        "newest": SLOTS[-1],
    }
    return ExpectedUpdate(market=market[0], source=market[1], kind=kind, **(values | columns))


def states(facts, stage, market=A) -> list[str]:
    frame = classify(facts, Settings()).frame
    own = frame[(frame["stage"] == stage) & (frame["market"] == market[0])]
    assert list(own["slot"]) == list(SLOTS)
    return own["state"].tolist()


def reasons(facts, stage) -> list[str]:
    frame = classify(facts, Settings()).frame
    return frame.loc[frame["stage"] == stage, "reason"].tolist()


def test_ingest_is_done_where_the_newest_observation_is_young_enough():
    seen = seen_rows(A, [None, 0, 90, 91, 120, 150])
    runs = run_rows((3, "ingest", "done", "", []), (4, "ingest", "failed", "disk full", []))
    facts = facts_of(seen=seen, runs=runs)
    assert states(facts, "ingest") == ["not due", "done", "done", "stale", "failed", "missing"]
    told = reasons(facts, "ingest")
    assert told[3] == "the newest count was 91 min old, at most 90 min expected"
    assert told[4] == "disk full"
    assert told[5].startswith("no ingest ran in this slot, and the newest count was 2.5 h old")


def test_a_price_may_be_a_day_old_and_a_probed_one_lives_as_long_as_its_probes():
    seen = seen_rows(A, [0] * 6, price_ages=[1, 24, 36, 37, 40, 48])
    runs = run_rows(*((place, "ingest", "done", "", []) for place in range(6)))
    both = (promise(A, "count"), promise(A, "price"))
    assert states(facts_of(seen=seen, runs=runs, promises=both), "ingest") == ["done"] * 3 + ["stale"] * 3
    listed = (promise(A, "count"), promise(A, "price", constant=True))
    assert states(facts_of(seen=seen, runs=runs, promises=listed), "ingest") == ["done"] * 6
    probed = (promise(A, "count"), promise(A, "price", probed=True))
    assert states(facts_of(seen=seen, runs=runs, promises=probed), "ingest") == ["done"] * 6


def test_a_forecast_is_done_fell_back_or_knew_only_an_old_value():
    issued = pd.concat(
        [
            issued_rows(A, [0]),
            issued_rows(A, [1], price_fallback="flat series: last value", others_fell_back="arima"),
            issued_rows(A, [2], newest_row=SLOTS[0]),
            issued_rows(A, [3], planned=False, models="arima"),
        ]
    )
    facts = facts_of(issued=issued)
    assert states(facts, "forecast") == ["done", "fallback", "stale", "missing", "missing", "missing"]
    told = reasons(facts, "forecast")
    assert told[1] == (
        "price: a simpler model replaced markov: flat series: last value; also replaced by simpler models: arima"
    )
    assert "2026-03-10 00:00" in told[2]
    assert told[3] == "no turn issued a forecast of markov in this slot"


def test_a_forecast_that_is_not_there_says_why():
    left = f"market {A[0]}@{A[1]} is left out: no on-demand price"
    runs = run_rows(
        (0, "forecast", "failed", "ArithmeticError: 1/0", []),
        (1, "forecast", "done", "", [left]),
        (2, "forecast", "done", "", []),
        (3, "forecast", "done", "", []),
    )
    seen = seen_rows(A, [0, 0, 0, 200, 0, None])
    facts = facts_of(issued=issued_rows(A, []), runs=runs, seen=seen)
    assert states(facts, "forecast") == ["failed", "failed", "not due", "stale", "missing", "not due"]
    told = reasons(facts, "forecast")
    assert told[:3] == ["ArithmeticError: 1/0", left, "the turn did not follow this market"]


def test_work_has_a_grace_period_before_it_is_missing():
    at = SLOTS[-1] + pd.Timedelta(minutes=5)
    early = facts_of(issued=issued_rows(A, []), at=at)
    assert states(early, "forecast") == ["missing"] * 5 + ["not due"]
    assert states(facts_of(issued=issued_rows(A, []), at=at + HALF), "forecast") == ["missing"] * 6


def test_every_running_job_needs_a_decision():
    jobs = [job_row("one", deadline=4), job_row("two", start=1, deadline=6, finished=4)]
    runs = run_rows((3, "allocate", "failed", "solver broke", []))
    decided = [("one", 0), ("two", 1), ("one", 1), ("two", 2)]
    facts = facts_of(jobs=jobs, decided=decided, runs=runs)
    assert states(facts, "allocate") == ["done", "done", "missing", "failed", "not due", "not due"]
    told = reasons(facts, "allocate")
    assert told[2] == "no decision for one"
    assert told[3] == "solver broke"
    assert told[4] == "two had finished"
    assert reasons(facts_of(), "allocate") == ["no job was running"] * 6


def test_a_job_that_is_left_out_is_told_so_and_jobs_over_before_they_were_added_need_no_decision():
    left = "job one is left out: nothing known of its market"
    runs = run_rows((0, "forecast", "done", "", [left]), (0, "allocate", "done", "", []))
    facts = facts_of(jobs=[job_row("one", deadline=1)], runs=runs)
    assert states(facts, "allocate")[0] == "failed"
    assert reasons(facts, "allocate")[0] == left
    past = facts_of(jobs=[job_row("p", start=-40, deadline=-20, created=2)])
    assert set(states(past, "allocate")) == {"not due"}


def test_a_job_that_moves_stands_where_it_was_told_to_be_and_is_missed_where_it_was_last():
    seen = pd.concat([seen_rows(A, [0] * 6), seen_rows(B, [0] * 6)], ignore_index=True)
    jobs = [job_row("roams", A, deadline=5)]
    facts = facts_of(seen=seen, jobs=jobs, decided=[("roams", 1, B), ("roams", 3, A)])
    assert states(facts, "allocate", A) == ["missing", "not due", "not due", "done", "missing", "not due"]
    assert states(facts, "allocate", B) == ["not due", "done", "missing", "not due", "not due", "not due"]
    assert states(facts, "score", A)[5] == "missing"
    # Decisions before the window count, and a decision without a market leaves the job in its previous market.
    earlier = facts_of(
        seen=seen, jobs=[job_row("roams", A, start=-2)], decided=[("roams", -1, B), ("roams", 0)]
    )
    assert states(earlier, "allocate", B) == ["done", *["missing"] * 3, "not due", "not due"]
    assert set(states(earlier, "allocate", A)) == {"not due"}


def test_a_job_is_scored_in_the_slot_of_its_deadline():
    jobs = [
        job_row("good", deadline=1, scored=1),
        job_row("late", deadline=2, scored=5),
        job_row("never", deadline=3),
        job_row("broken", deadline=4),
        job_row("rigid", deadline=5, replayed=False),
    ]
    runs = run_rows((4, "score", "failed", "killed", []))
    facts = facts_of(jobs=jobs, runs=runs)
    assert states(facts, "score") == ["not due", "done", "done", "missing", "failed", "not due"]
    told = reasons(facts, "score")
    assert told[2:5] == ["late was scored later", "never ended and is not scored", "killed"]


def test_a_job_that_was_over_before_it_was_added_is_scored_then():
    jobs = [job_row("p", start=-40, deadline=-20, created=2, scored=2)]
    assert states(facts_of(jobs=jobs), "score") == [
        "not due",
        "not due",
        "done",
        "not due",
        "not due",
        "not due",
    ]


def test_the_worst_of_several_jobs_is_the_slots_state_with_its_own_reason():
    jobs = [job_row("one", deadline=2), job_row("two", deadline=2), job_row("away", B, deadline=2)]
    facts = facts_of(
        jobs=jobs,
        decided=[("one", 0), ("away", 0)],
        seen=pd.concat([seen_rows(A, [0] * 6), seen_rows(B, [0] * 6)]),
    )
    assert states(facts, "allocate")[0] == "missing"
    assert states(facts, "allocate", B)[0] == "done"
    assert reasons(facts, "allocate")[0] == "no decision for two"


def test_summary_and_stretches_add_up():
    seen = pd.concat([seen_rows(A, [0, 0, 95, 95, 0, 95]), seen_rows(B, [0] * 6)], ignore_index=True)
    done = classify(facts_of(seen=seen, issued=issued_rows(A, [0, 1])), Settings())
    summary = done.summary().set_index(["market", "stage"])
    row = summary.loc[(A[0], "ingest")]
    assert (row["done"], row["missing"], row["complete"]) == (3, 3, 0.5)
    assert np.isnan(summary.loc[(A[0], "score"), "complete"])
    assert summary[list(STATES)].sum().sum() == len(done.frame) == done.count(*STATES) == 2 * 4 * 6
    found = done.stretches(("missing",))
    own = found[(found["market"] == A[0]) & (found["stage"] == "ingest")]
    assert own[["since", "until", "slots"]].to_numpy().tolist() == [
        [SLOTS[2], SLOTS[3], 2],
        [SLOTS[5], SLOTS[5], 1],
    ]
    everything = done.stretches(STATES)
    assert everything["slots"].sum() == len(done.frame)


BEFORE, AFTER = pd.Timestamp("2026-03-10T06:30Z"), pd.Timestamp("2026-03-10T08:00Z")


@pytest.fixture(scope="module")
def turns(tmp_path_factory):
    """Return settings, a warehouse with two turns and two skipped slots in between, and a copy from before the second turn."""
    folder = tmp_path_factory.mktemp("status")
    settings = read_settings(small_settings(folder))
    db, before = folder / "w.duckdb", folder / "before.duckdb"
    one_turn(db, settings, at=BEFORE, requests=past_jobs(2, before=BEFORE))
    shutil.copy(db, before)
    one_turn(db, settings, at=AFTER)
    return settings, db, before


def test_real_turns_leave_a_map_that_says_what_was_skipped(turns):
    settings, db, _ = turns
    with open_reader(db) as store:
        done = completeness_of(store, settings, at=AFTER)
    assert (done.start, done.end) == (BEFORE, AFTER)
    summary = done.summary().set_index("stage")
    assert (summary.loc["forecast", "complete"] == 1).all()
    assert (summary.loc["ingest", "complete"] == 1).all()
    assert (summary.loc["score", "done"] > 0).any()
    skipped = done.stretches(("missing",))
    assert set(skipped["stage"]) == {"allocate"}
    assert set(skipped["since"]) == {AFTER - 2 * HALF}
    assert set(skipped["until"]) == {AFTER - HALF}


def test_what_a_map_says_of_a_time_does_not_change_with_what_came_after(turns, tmp_path):
    settings, db, before = turns
    changed = shutil.copy(db, tmp_path / "w.duckdb")
    with open_reader(before) as store:
        then = status_of(store, settings, at=BEFORE)
    with open_store(changed) as store:
        store.execute(
            "UPDATE availability SET available = 99, gap_seconds = 7200 WHERE known_at > ?",
            [BEFORE.to_pydatetime()],
        )
        market = dict(
            zip(("provider", "region", "zone", "instance_type"), MARKETS[0].split("/"), strict=True)
        )
        later = count_row(BEFORE + pd.Timedelta(hours=1), 3, source="a later source", **market)
        append(store, counts(later), source="t")
        store.execute(
            "UPDATE vintages SET market = 'simulated/west/west-a/v100' WHERE market = ? AND issued_at > ?",
            [MARKETS[0], BEFORE.to_pydatetime()],
        )
        store.execute(
            "INSERT INTO jobs SELECT * REPLACE ('later' AS name, 'simulated/west/west-b/v100' AS market, "
            "created_at + INTERVAL 1 HOUR AS created_at) FROM jobs WHERE start_at = ? LIMIT 1",
            [BEFORE.to_pydatetime()],
        )
        save_failure(store, "later", at=AFTER, stage="ingest", reason="after the fact")
        fetch = {
            "feed": "spot",
            "logical_at": BEFORE + HALF,
            "status": "failed",
            "reason": "no answer",
            "watermark": "{}",
        }
        write_rows(
            store, "fetches", [fetch | dict.fromkeys(("added", "repeated", "rejected", "requests"), 0)]
        )
    with open_reader(changed) as store:
        now = status_of(store, settings, at=BEFORE)
    pd.testing.assert_frame_equal(now.completeness.frame, then.completeness.frame)
    assert (now.freshness, now.feeds) == (then.freshness, then.feeds)


def test_work_that_was_done_or_said_to_be_over_later_is_still_to_be_done(turns, tmp_path):
    settings, _, before = turns
    db = shutil.copy(before, tmp_path / "w.duckdb")
    with open_store(db) as store:
        store.execute("DELETE FROM decisions")
        store.execute("DELETE FROM runs WHERE stage IN ('allocate', 'score')")
        store.execute("UPDATE outcomes SET scored_at = scored_at + INTERVAL 1 HOUR")
        for name, start in store.execute("SELECT name, start_at FROM jobs WHERE deadline_at > created_at"):
            row = {
                "job": name,
                "reported_at": start,
                "known_at": BEFORE + HALF,
                "revision": 0,
                "finished": True,
            }
            write_rows(store, "reports", [row | {"note": "", "market": ""}])
        frame = completeness_of(store, settings, at=BEFORE).frame
    own = frame[frame["stage"].isin(["allocate", "score"])]
    assert len(own) == 4
    assert set(own["state"]) == {"not due"}
    assert own["reason"].str.startswith("due by").all()


def test_an_earlier_window_is_due_only_when_asked_for_and_one_market_can_be_picked(turns):
    settings, db, _ = turns
    with open_reader(db) as store:
        wide = completeness_of(store, settings, start=BEFORE - pd.Timedelta(days=5), at=BEFORE)
        keys = wide.frame["market"].unique()
        one = completeness_of(store, settings, start=wide.start, at=BEFORE, market=keys[0])
        late = completeness_of(store, settings, at=AFTER + pd.Timedelta(hours=12))
        with pytest.raises(SettingsError, match="no slot from"):
            completeness_of(store, settings, start=AFTER, end=BEFORE, at=AFTER)
    forecasts = wide.frame[wide.frame["stage"] == "forecast"]
    assert {"not due", "missing", "done"} <= set(forecasts["state"])
    assert forecasts.loc[forecasts["state"] == "not due", "slot"].max() < BEFORE - pd.Timedelta(days=3)
    expected = wide.frame[wide.frame["market"] == keys[0]].reset_index(drop=True)
    pd.testing.assert_frame_equal(one.frame, expected)
    stopped = late.frame[
        (late.frame["slot"] > AFTER + pd.Timedelta(hours=1)) & (late.frame["stage"] == "ingest")
    ]
    assert set(stopped["state"][:-1]) <= {"missing", "not due"}
    assert (stopped["state"] == "missing").sum() > 30


def test_a_failed_stage_is_failed_with_its_reason_until_it_is_done(turns, tmp_path):
    settings, _, before = turns
    db = tmp_path / "w.duckdb"
    shutil.copy(before, db)
    at = BEFORE + HALF
    with open_store(db) as store:
        save_failure(store, "run-x", at=at, stage="forecast", reason="MarketError: the reason")
    with open_reader(db) as store:
        done = completeness_of(store, settings, at=at + HALF)
    failed = done.frame[done.frame["state"] == "failed"]
    assert set(failed["stage"]) == {"forecast"}
    assert set(failed["slot"]) == {at}
    assert set(failed["reason"]) == {"MarketError: the reason"}
