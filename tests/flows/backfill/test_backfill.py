"""A backfill writes the same tables as live turns, slot by slot and bit by bit, and can be interrupted anywhere."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from forms_kit import quick_first
from make import make_turn
from past_jobs import past_jobs
from test_turn import AT, LIGHT, POOL, scramble_after, tidy_tables

from slackwater.flows.backfill import run as module
from slackwater.flows.backfill.run import Backfill, backfill, plan_backfill, slots_between
from slackwater.flows.config import Settings
from slackwater.flows.ledger.decisions import decisions_of
from slackwater.flows.ledger.jobs import save_jobs, stored_jobs
from slackwater.flows.ledger.stages import STAGES, save_failure
from slackwater.flows.turn import stages
from slackwater.flows.turn.context import run_id_of
from slackwater.flows.turn.stages import TurnProgress
from slackwater.optimization.job.request import read_request
from slackwater.warehouse.errors import MarketError, SettingsError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.store.files import is_waited_for

STEP = pd.Timedelta("30min")
EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
TABLES = (
    "price", "availability", "vintages", "forecasts", "accuracy", "jobs", "decisions", "outcomes", "weights", "runs",
    "fitted", "imports", "rejected", "assumptions",
)  # fmt: skip
#: Few slots; the models are refitted in the third.
SLOTS = list(pd.date_range(AT + pd.Timedelta("1h"), periods=4, freq=STEP))
#: Enough slots for a job to start, end and be learned from.
LONGER = list(pd.date_range(SLOTS[0], periods=6, freq=STEP))


@pytest.fixture(scope="session")
def settings(tmp_path_factory) -> Settings:
    pool = tmp_path_factory.mktemp("pool") / "pool.toml"
    pool.write_text(LIGHT)
    return Settings(
        models=("last_value", "smoothing"), planner="markov", measured_origins=3, horizon=3, planning_horizon=6,
        max_markets=2, simulated_days=4, history_days=3, refit_hours=2, risk_paths=10, pool=pool,
    )  # fmt: skip


@pytest.fixture(scope="session")
def whole_pool(tmp_path_factory, settings) -> Settings:
    """Return the same settings with policies that learn from the record."""
    pool = tmp_path_factory.mktemp("pool") / "pool.toml"
    pool.write_text(POOL)
    return settings.model_copy(update={"pool": pool})


def tables(db: Path) -> dict[str, list]:
    """Return the rows of every table, without the columns that record how a row was written."""
    with open_store(db) as store:
        found = {name: read_rows(store, name) for name in TABLES}
    marks = ["made", "backfilled"]
    plain = {name: frame.drop(columns=[m for m in marks if m in frame]) for name, frame in found.items()}
    # The row order of these tables only reflects which row was stored first.
    return {
        name: sorted(map(repr, rows)) if name in ("runs", "fitted") else rows
        for name, rows in ((name, frame.to_numpy().tolist()) for name, frame in plain.items())
    }


def add_past_jobs(db: Path) -> None:
    """Store jobs that ended before the first slot, which then learns from them."""
    with open_store(db) as store:
        save_jobs(store, past_jobs(2, before=SLOTS[0]), origin="user", at=SLOTS[0], step=STEP)


def live_turns(db: Path, settings: Settings, slots, data: Path | None = None) -> None:
    """Run a live turn per slot, each with a newly opened store, as a schedule would."""
    add_past_jobs(db)
    for at in slots:
        with open_store(db) as store:
            turn = make_turn(store, at, settings)
            found = stages.forecast(turn, stages.ingest(turn, TurnProgress(data=data)))
            for stage in stages.STAGES[2:5]:
                found = stage(turn, found)


def made(db: Path, settings: Settings, slots, *, data: Path | None = None, **how):
    add_past_jobs(db)
    workers = how.pop("workers", 1)
    slot_range = slots_between(slots[0], slots[-1], slot=STEP, step=how.pop("step", None), **how)
    return backfill(Backfill(db=db, slot_range=slot_range, settings=settings, data=data, workers=workers))


@pytest.fixture(scope="module")
def live_files(tmp_path_factory, settings) -> list[Path]:
    """Return the warehouse after all live turns, followed by a copy after each slot."""
    db = tmp_path_factory.mktemp("live") / "w.duckdb"
    found = [db]
    for number, at in enumerate(SLOTS):
        live_turns(db, settings, [at])
        found.append(Path(shutil.copy(db, db.with_name(f"{number}.duckdb"))))
    return found


@pytest.fixture(scope="module")
def live(live_files):
    return tables(live_files[-1])


@pytest.fixture
def after_first(live_files, tmp_path) -> Path:
    """Return a private copy of the warehouse after the live turn of the first slot, which takes longest."""
    return Path(shutil.copy(live_files[1], tmp_path / "w.duckdb"))


@pytest.fixture(scope="module")
def filled(tmp_path_factory, settings):
    """Return a warehouse filled by a single backfill, and the jobs that ended in each of its slots."""
    db, true, ended = tmp_path_factory.mktemp("filled") / "w.duckdb", module.score_jobs, []

    def watched(turns, works, *rest):
        ended.extend([job.request.name for job, _ in work.ended] for work in works)
        return true(turns, works, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "score_jobs", watched)
        made(db, settings, SLOTS)
    return db, ended


def same(found: dict[str, list], expected: dict[str, list]) -> None:
    for name in TABLES:
        assert repr(found[name]) == repr(expected[name]), name


def test_it_ends_with_the_tables_of_live_turns(filled, live):
    """The slots include a refit; a job that ends is covered by the test of scored jobs below."""
    assert len(live["outcomes"]) > 0
    assert len({row.split("Timestamp")[1] for row in live["fitted"]}) > 1, "a refit lies between"
    same(tables(filled[0]), live)


def test_what_it_makes_is_marked(filled):
    with open_store(filled[0]) as store:
        assert set(read_rows(store, "runs")["made"]) == {"backfill"}
        assert read_rows(store, "vintages")["backfilled"].all()


def test_no_job_is_scored_again_by_a_later_slot(filled):
    assert filled[1][0], "a job has ended before the first slot"
    names = [name for slot in filled[1] for name in slot]
    assert sorted(names) == sorted(set(names))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chunk", "piece", "opening", "workers"), [(3, 2, 1, 1), (3, 1, 8, 1), (2, 24, 8, 1), (4, 1, 8, 2)]
)
def test_one_chunk_or_many_are_the_same(
    tmp_path, settings, live, monkeypatch, chunk, piece, opening, workers
):
    """Decisions computed while the next piece is forecast equal those of live turns, also with several processes."""
    monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(module, "PIECE", piece)
    monkeypatch.setattr(module, "OPENING", opening)
    made(tmp_path / "w.duckdb", settings, SLOTS, workers=workers)
    same(tables(tmp_path / "w.duckdb"), live)


@pytest.mark.slow
def test_decisions_are_made_for_jobs_that_later_slots_have_scored(tmp_path, settings, after_first):
    """Simulate a kill between two stages: write everything except the decisions, then the decisions."""
    db = after_first
    with open_store(db) as store:
        known = stored_jobs(store)[0].request
        short = read_request(EXAMPLES / "bert-sweep.toml").model_copy(
            update={"name": "short", "deadline_in": "90min"}
        )
        placed = short.with_place(at=LONGER[1], market=known.market, source=known.source)
        save_jobs(store, [placed], origin="user", at=LONGER[1], step=STEP)
    shutil.copy(db, tmp_path / "parts.duckdb")
    made(db, settings, LONGER[:5])
    expected = tables(db)
    assert sum("'short'" in repr(row) for row in expected["decisions"]) == 3
    assert any("'short'" in repr(row) for row in expected["outcomes"])
    parts = tmp_path / "parts.duckdb"
    made(parts, settings, LONGER[:5], stages=["ingest", "forecast", "score"])
    made(parts, settings, LONGER[:5])
    same(tables(parts), expected)


@pytest.mark.slow
def test_jobs_that_may_move_are_decided_and_scored_as_live_turns_do(tmp_path, settings):
    """One job ends and is scored over its markets; its score then selects the policy of the other job from the next slot on."""
    live, db = tmp_path / "live.duckdb", tmp_path / "w.duckdb"
    live_turns(live, settings, LONGER[:1])
    moving = read_request(EXAMPLES / "bert-sweep.toml").model_copy(
        update={"markets": ("simulated/*/*/h100",)}
    )
    with open_store(live) as store:
        placed = [
            moving.model_copy(update={"name": name, "deadline_in": length}).with_place(
                at=at, market=None, source=None
            )
            for name, length, at in (("brief", "60min", LONGER[1]), ("long", "4h", LONGER[2]))
        ]
        save_jobs(store, placed, origin="user", at=LONGER[0], step=STEP)
    shutil.copy(live, db)
    live_turns(live, settings, LONGER[1:])
    made(db, settings, LONGER)
    expected = tables(live)
    assert sum("'brief'" in repr(row) for row in expected["outcomes"]) > 1
    with open_store(live) as store:
        why = [row["chosen_because"] for row in decisions_of(store, "long")]
    assert [text.startswith("leads after 1 job,") for text in why] == [False, False, True, True]
    same(tables(db), expected)


@pytest.mark.slow
def test_it_goes_on_where_live_turns_left_off_and_they_where_it_did(tmp_path, settings, live, live_files):
    db = Path(shutil.copy(live_files[2], tmp_path / "w.duckdb"))
    outcomes = made(db, settings, SLOTS[:3])
    assert [one.became["forecast"] for one in outcomes] == ["kept", "kept", "made"]
    live_turns(db, settings, SLOTS[3:])
    same(tables(db), live)


def test_the_preview_is_what_is_done_and_a_second_run_does_nothing(settings, after_first):
    """Also covers a slot before the first live turn."""
    db, slots = after_first, [SLOTS[0] - STEP, *SLOTS[:2]]
    with open_store(db) as store:
        plans = plan_backfill(store, slots_between(slots[0], slots[-1], slot=STEP))
    outcomes = made(db, settings, slots)
    for plan, outcome in zip(plans, outcomes, strict=True):
        assert plan == outcome.plan
        assert {s for s, became in outcome.became.items() if became == "made"} == set(plan.todo)
    assert [plan.todo for plan in plans] == [STAGES, (), STAGES]
    before = tables(db)
    again = made(db, settings, slots)
    assert all(became == "kept" for one in again for became in one.became.values())
    same(tables(db), before)


@pytest.mark.slow  # the quick forms: a second run does nothing, above; slots that failed are made again, below
def test_everything_again_changes_nothing_that_was_issued(tmp_path, settings, filled, live):
    db = tmp_path / "w.duckdb"
    shutil.copy(filled[0], db)
    everything = made(db, settings, SLOTS, reprocess="all")
    assert all(became == "made" for one in everything for became in one.became.values())
    # the simulated market was queried again and returned the same rows
    same(tables(db) | {"imports": live["imports"]}, live)


def observed(db: Path) -> list[str]:
    """Return all observations without the identifier of the ingest that stored them."""
    with open_store(db) as store:
        return [
            repr(store.execute(f"SELECT * EXCLUDE (batch) FROM {name} ORDER BY ALL"))
            for name in ("price", "availability")
        ]


def test_slots_that_fail_lose_only_themselves(settings, live, live_files, after_first, monkeypatch):
    """The ingest of a slot fails, and the forecast of another slot."""
    db = after_first
    ingest, forecast = module.ingest, module.forecast_turns

    def no_ingest(turn, found):
        if turn.at == SLOTS[1]:
            raise MarketError("no answer")
        return ingest(turn, found)

    def no_forecast(turns, works, **rest):
        if any(turn.at == SLOTS[2] for turn in turns):
            raise MarketError("the feed was down")
        return forecast(turns, works, **rest)

    monkeypatch.setattr(module, "ingest", no_ingest)
    monkeypatch.setattr(module, "forecast_turns", no_forecast)
    first, dumb, bad, last = made(db, settings, SLOTS)
    assert dumb.became == {
        "ingest": "failed",
        "forecast": "waiting",
        "allocate": "waiting",
        "score": "waiting",
    }
    assert bad.became == {"ingest": "made", "forecast": "failed", "allocate": "waiting", "score": "waiting"}
    assert [set(one.became.values()) for one in (first, last)] == [{"kept"}, {"made"}]
    monkeypatch.setattr(module, "ingest", ingest)
    monkeypatch.setattr(module, "forecast_turns", forecast)
    kept = made(db, settings, SLOTS)
    assert kept[2].became["forecast"] == "kept", "what failed is tried again only when asked"
    assert [kept[1].plan.reasons["ingest"], kept[2].plan.reasons["forecast"]] == [
        "no answer",
        "the feed was down",
    ]
    _, dumb, bad, _ = made(db, settings, SLOTS, reprocess="failed")
    assert set(dumb.became.values()) == {"made"}
    assert bad.became == {"ingest": "kept", "forecast": "made", "allocate": "made", "score": "made"}
    found = tables(db)
    lengths = [{name: len(rows) for name, rows in one.items()} for one in (found, live)]
    assert lengths[0] == lengths[1]
    # Rows missing in the failed slots were already ingested by the next slot, so only counts in the ledger differ.
    assert observed(db) == observed(live_files[-1])
    assert repr(found["jobs"]) == repr(live["jobs"])


@pytest.mark.slow
def test_a_job_whose_score_fails_is_scored_by_the_next_slot(tmp_path, settings, monkeypatch):
    """The plan of the later slots assumed that this slot would score the job."""
    monkeypatch.setattr(module, "PIECE", 1)
    db = tmp_path / "w.duckdb"
    true, failed = module.score_jobs, []

    def failing(turns, works, *rest):
        ended = [job.request.name for work in works for job, _ in work.ended]
        if ended and not failed:
            failed.extend(ended)
            raise MarketError("no score today")
        return true(turns, works, *rest)

    monkeypatch.setattr(module, "score_jobs", failing)
    outcomes = made(db, settings, SLOTS[:4])
    assert [one.became["score"] for one in outcomes] == ["failed", "made", "made", "made"]
    with open_store(db) as store:
        assert set(read_rows(store, "weights")["job"]) >= set(failed)


WAITING = """
import sys
from pathlib import Path
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_store
with open_store(Path(sys.argv[1]), wait=120, say=lambda _: None) as store:
    print(len(set(read_rows(store, "runs").query("stage == 'allocate'")["run"])))
"""


@pytest.mark.slow
def test_a_process_that_waits_gets_in_after_the_piece_at_hand(tmp_path, settings, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 1)
    monkeypatch.setattr(module, "OPENING", 100)
    db, waiting, seen = tmp_path / "w.duckdb", [], []

    def start(_: int) -> None:
        if waiting:
            return
        words = [sys.executable, "-c", WAITING, str(db)]
        waiting.append(subprocess.Popen(words, stdout=subprocess.PIPE, text=True))
        while not is_waited_for(db):
            assert waiting[0].poll() is None
            time.sleep(0.02)

    def pause() -> None:
        if not seen:
            seen.append(int(waiting[0].communicate()[0]))

    slot_range = slots_between(SLOTS[0], SLOTS[3], slot=STEP)
    outcomes = backfill(
        Backfill(db=db, slot_range=slot_range, settings=settings, workers=1, progress=start, pause=pause)
    )
    assert seen[0] < 4, "whole slots, and not all of them"
    assert all(one.became["allocate"] == "made" for one in outcomes)


@pytest.mark.parametrize("stage", quick_first(["forecast_turns", "ingest", "find_work", "estimate_turns"]))
def test_a_run_whose_time_is_up_stops_and_blames_no_slot(settings, after_first, monkeypatch, stage):
    def late(*_, **__):
        raise TimeoutError("the flow's time is up")

    monkeypatch.setattr(module, stage, late)
    with pytest.raises(TimeoutError):
        made(after_first, settings, SLOTS[:3])
    with open_store(after_first) as store:
        assert "failed" not in set(read_rows(store, "runs")["status"])


@pytest.mark.slow
def test_an_estimation_that_fails_ahead_is_made_with_its_forecasts(settings, live, after_first, monkeypatch):
    def failing(turns, works, *, before):
        raise MarketError("not today")

    monkeypatch.setattr(module, "estimate_turns", failing)
    made(after_first, settings, SLOTS)
    same(tables(after_first), live)


@pytest.mark.slow
def test_backwards_makes_the_same_forecasts(tmp_path, settings, filled, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", 2)
    order = []
    true = module.ingest
    monkeypatch.setattr(module, "ingest", lambda turn, found: order.append(turn.at) or true(turn, found))
    outcomes = made(tmp_path / "w.duckdb", settings, SLOTS[:4], backwards=True)
    assert order[0] == SLOTS[2]
    assert order[-1] == SLOTS[1]
    assert all(became == "made" for one in outcomes for became in one.became.values())


@pytest.mark.parametrize("stage", quick_first(["ingest", "forecast"]))
def test_one_stage_alone(tmp_path, settings, stage):
    folder = tmp_path / "data"
    folder.mkdir()
    tidy_tables(folder, AT - pd.Timedelta(days=5), AT + pd.Timedelta(hours=2))
    db = tmp_path / "w.duckdb"
    with open_store(db) as store:
        stages.ingest(make_turn(store, AT, settings), TurnProgress(data=folder))
    outcomes = made(db, settings, SLOTS[:2], stages=[stage])
    assert [one.became for one in outcomes] == [{stage: "made"}] * 2
    with open_store(db) as store:
        assert not len(read_rows(store, "decisions"))
        assert f"simulated:{settings.seed}" not in set(read_rows(store, "series")["source"]), (
            "beside rows of another source"
        )


@pytest.mark.slow
def test_what_became_known_late_is_not_seen_before_nor_what_came_later_at_all(tmp_path, whole_pool):
    """Some rows become known hours after they were observed: live turns and a backfill still agree.

    A backfill from a folder with scrambled rows after its last slot gives the same tables.
    """
    true, other = tmp_path / "true", tmp_path / "other"
    for folder in (true, other):
        folder.mkdir()
        tidy_tables(folder, AT - pd.Timedelta(days=5), AT + pd.Timedelta(hours=4))
    scramble_after(other, SLOTS[1])
    for name, folder in (("live", true), ("filled", true), ("scrambled", other)):
        db = tmp_path / f"{name}.duckdb"
        made(db, whole_pool, SLOTS[:2], stages=["ingest"], data=folder)
        with open_store(db) as store:
            store.execute(
                "UPDATE availability SET known_at = observed_at + INTERVAL 3 HOUR "
                "WHERE observed_at > ? AND minute(observed_at) IN (10, 40)",
                [(AT - pd.Timedelta(hours=8)).to_pydatetime()],
            )
    for at in SLOTS[:2]:
        with open_store(tmp_path / "live.duckdb") as store:
            turn = make_turn(store, at, whole_pool)
            found = stages.forecast(turn, TurnProgress())
            for stage in stages.STAGES[2:5]:
                found = stage(turn, found)
    for name in ("filled", "scrambled"):
        made(tmp_path / f"{name}.duckdb", whole_pool, SLOTS[:2], stages=["forecast", "allocate", "score"])
    live, filled, scrambled = (
        tables(tmp_path / f"{name}.duckdb") for name in ("live", "filled", "scrambled")
    )
    same(filled, live)
    assert repr(scrambled["availability"]) != repr(filled["availability"])
    for name in ("vintages", "forecasts", "accuracy", "decisions", "outcomes", "weights"):
        assert repr(scrambled[name]) == repr(filled[name]), name


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": ["plan"]}, "--stage 'plan'"),
        ({"reprocess": "some"}, "--reprocess 'some'"),
        ({"step": pd.Timedelta("45min")}, "multiple of the slot length"),
        ({"end": AT - STEP}, "no slot from"),
        ({"end": AT + pd.Timedelta(days=9000)}, "at most"),
    ],
)
def test_what_cannot_be_is_refused(change, words):
    asked = {"start": AT, "end": AT, "slot": STEP} | change
    with pytest.raises(SettingsError, match=words):
        slots_between(asked.pop("start"), asked.pop("end"), **asked)


@pytest.mark.slow
def test_steps_wider_than_a_slot(tmp_path, settings):
    hour = pd.Timedelta(hours=1)
    db = tmp_path / "w.duckdb"
    made(db, settings, SLOTS[:3], step=hour)
    live_turns(tmp_path / "live.duckdb", settings, SLOTS[:3:2])
    same(tables(db), tables(tmp_path / "live.duckdb"))


KILLED = """
import os, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from pathlib import Path
sys.path[:0] = sys.argv[3].split(os.pathsep)
import pandas as pd
from slackwater.flows.backfill import run as module
from slackwater.flows.config import read_settings
from test_backfill import SLOTS, made
module.CHUNK, module.PIECE, module.OPENING = 4, 2, 2
print("begin", flush=True)
made(Path(sys.argv[1]), read_settings(Path(sys.argv[2])), SLOTS)
print("end", flush=True)
"""


@pytest.mark.slow
def test_killed_twenty_times_it_ends_with_the_same_tables(tmp_path, settings, live):
    file = tmp_path / "slackwater.toml"
    values = settings.model_dump(mode="json", exclude_defaults=True)
    file.write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items()))
    db, kills = tmp_path / "w.duckdb", 0
    for attempt in range(60):
        words = [sys.executable, "-c", KILLED, str(db), str(file), os.pathsep.join(sys.path)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "begin\n"
        if kills < 20:
            time.sleep(0.15 * (attempt % 9))
            os.kill(process.pid, signal.SIGKILL)
        finished = "end" in process.communicate()[0]
        kills += not finished
        if finished and kills >= 20:
            break
        if finished:
            shutil.rmtree(tmp_path / "w.duckdb.read", ignore_errors=True)
            for rest in tmp_path.glob("w.duckdb*"):
                rest.unlink()
    assert kills == 20
    same(tables(db), live)


@pytest.mark.slow  # the quick form: slots that fail, above
def test_an_earlier_failure_of_a_stage_is_forgotten_when_it_is_done(settings, after_first):
    db, at = after_first, SLOTS[1]
    with open_store(db) as store:
        save_failure(store, run_id_of(at), at=at, stage="forecast", reason="first")
        save_failure(store, run_id_of(at), at=at, stage="forecast", reason="second")
        slot_range = slots_between(at, at, slot=STEP)
        assert plan_backfill(store, slot_range)[0].todo == ("ingest", "allocate", "score")
        assert plan_backfill(store, slot_range)[0].reasons == {"forecast": "second"}
    made(db, settings, [at], reprocess="failed")
    with open_store(db) as store:
        runs = read_rows(store, "runs", where={"run": run_id_of(at)})
    assert set(runs["status"]) == {"done"}
    assert set(runs["stage"]) == set(STAGES)
