"""Absurd values: numbers of settings, job files, request files, types and teams, times of commands, rows of any size.

Each is refused with a message or used; a market or job that cannot be used affects only itself, not the others.
"""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from annotated_types import Ge, Gt, Le, Lt
from command_kit import call
from forms_kit import quick_first
from make import make_turn
from pydantic import BaseModel, ValidationError
from storekit import count_row, counts, price_row, prices

from slackwater.flows.clock import parse_time
from slackwater.flows.config import AlarmSettings, BoundSettings, Feed, Settings, Sink
from slackwater.flows.following import choose_markets
from slackwater.flows.histories import Reads
from slackwater.flows.renting.rent import (
    AmdahlPart,
    DelayPart,
    LinearPart,
    MeasuredPart,
    PowerPart,
    TablePart,
    TypePart,
)
from slackwater.flows.turn.forecast import forecast_market
from slackwater.flows.turn.pool import read_pool
from slackwater.flows.turn.stages import decide_jobs, forecast_turns
from slackwater.flows.turn.work import find_work
from slackwater.optimization.fleet import competition
from slackwater.optimization.job.request import (
    LEAST,
    MOST,
    MOST_STATES,
    check_bounds,
    parse_request,
    shortfall_words,
    slot_job,
)
from slackwater.optimization.requests.request import TuningRequest
from slackwater.warehouse.amounts import LARGEST_COUNT, LONGEST_GAP, SHORTEST_GAP
from slackwater.warehouse.asof import load_history
from slackwater.warehouse.errors import JobError, SettingsError, SlackwaterError
from slackwater.warehouse.history import Market
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import open_store

AT = pd.Timestamp("2026-03-10T00:00Z")
HALF = pd.Timedelta(minutes=30)
JOB = {
    "name": "lora", "n_min": 1, "n_max": 8, "deadline_in": "12h", "workload": {"amount": 24, "unit": "slots"},
    "throughput": {"form": "linear"}, "checkpoint": {"resumable": True, "overhead_minutes": 4},
}  # fmt: skip
ABSURD = (
    math.nan, math.inf, -math.inf, -1.0, -0.0, 0.0, 5e-324, 1e-300, 1e-9, 0.5, 1.0, 3.0, 1e6, 1e9, 1e12, 1e15, 1.001e15, 1e300,
    1.7e308, 2**31, 2**63, 10**40,
)  # fmt: skip


# ---
# Every number has two bounds, is used at both, and refused beyond.

FORMS = (
    Settings, AlarmSettings, BoundSettings, Feed, Sink, TuningRequest, AmdahlPart, DelayPart, LinearPart, MeasuredPart, PowerPart,
    TablePart, TypePart,
)  # fmt: skip


def numbers(form: type[BaseModel]):
    """Return (name, least, most) of every number of a form, None for a missing bound."""
    for name, field in form.model_fields.items():
        kinds = str(field.annotation)
        if (
            "bool" in kinds
            or "tuple" in kinds
            or "Literal" in kinds
            or not ("int" in kinds or "float" in kinds)
        ):
            continue
        marks = list(field.metadata)
        for part in getattr(field.annotation, "__args__", ()):
            marks += getattr(part, "__metadata__", ())
        flat = [own for mark in marks for own in getattr(mark, "metadata", [mark])]
        least = next(
            (one.ge if isinstance(one, Ge) else one.gt for one in flat if isinstance(one, Ge | Gt)), None
        )
        most = next(
            (one.le if isinstance(one, Le) else one.lt for one in flat if isinstance(one, Le | Lt)), None
        )
        yield name, least, most


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_number_has_two_bounds_and_no_infinity(form):
    assert form.model_config.get("allow_inf_nan") is False, form
    for name, least, most in numbers(form):
        assert least is not None, f"{form.__name__}.{name} has no least value"
        assert most is not None, f"{form.__name__}.{name} has no most value"


@pytest.mark.parametrize("name", [name for name, *_ in numbers(Settings)])
def test_a_setting_of_any_value_is_refused_in_words_or_makes_a_turn(name):
    for value in ABSURD:
        try:
            settings = Settings(**{name: value})
        except ValidationError as error:
            assert "Input should be" in str(error) or "valid" in str(error)
            continue
        assert pd.Timedelta(days=settings.history_days) > pd.Timedelta(0)
        assert AT - pd.Timedelta(days=settings.simulated_days) < AT
        np.random.default_rng(settings.seed)


# ---
# Job files.


def with_key(key, value):
    values = {**JOB, "workload": dict(JOB["workload"]), "checkpoint": dict(JOB["checkpoint"])}
    table, _, field = key.rpartition(".")
    if table == "throughput":
        forms = {"parallel": "amdahl", "exponent": "power", "rates": "table", "scale": "amdahl"}
        values["throughput"] = {"form": forms.get(field, "linear")}
        if field == "scale":
            values["throughput"]["parallel"] = 0.9
    if table == "moving":
        values["markets"] = ["a/*/*/d"]
    holder = values.setdefault(table, {}) if table else values
    holder[field] = [value] * 8 if field == "rates" else value
    return values


KEYS = [
    *(key for key in MOST if key != "moving.takes_minutes"),
    "n_min",
    "step_minutes",
    "throughput.parallel",
]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_of_a_job_file_of_any_value_is_refused_in_words_or_planned(key):
    bounds = [LEAST.get(key, 1.0), MOST.get(key, (8, ""))[0]]
    near = [bound * by for bound in bounds for by in (1.0, 0.999, 1.001)]
    for value in (*ABSURD, *near):
        try:
            request = parse_request(with_key(key, value), "j.toml")
            placed = request.with_place(at=AT, market="a/b/c/d", source="s")
            check_bounds(placed)
            job = slot_job(placed, step=HALF, on_demand_usd=3.0)
            told = shortfall_words(job, AT, HALF)
        except SlackwaterError as error:
            assert str(error).strip()
            continue
        assert math.isfinite(job.value)
        assert math.isfinite(job.workload)
        assert "inf" not in told.split()
        if key in MOST:
            assert value <= MOST[key][0]
            assert value >= LEAST.get(key, -MOST[key][0])


def test_the_largest_amount_of_work_says_how_far_it_is_from_done():
    values = JOB | {"workload": {"amount": 1e15, "unit": "slots"}}
    request = parse_request(values, "j.toml").with_place(at=AT, market="a/b/c/d", source="s")
    job = slot_job(request, step=HALF, on_demand_usd=3.0)
    assert "need more than 100 days for the rest" in shortfall_words(job, AT, HALF)


def test_a_job_of_too_many_slots_times_instances_is_refused():
    wide = JOB | {"n_max": 1024, "deadline_in": "6d"}
    request = parse_request(wide, "j.toml").with_place(at=AT, market="a/b/c/d", source="s")
    with pytest.raises(JobError, match=f"at most {MOST_STATES:,}; use a longer step"):
        slot_job(request, step=HALF, on_demand_usd=3.0)


# ---
# Times.

TIMES = (
    "", "now", "NaT", "nan", "inf", "-1", "1e9", "12345", "0001-01-01", "0001-01-01T00:00+14:00", "9999-12-31T23:59:59-14:00",
    "1677-09-21T00:12:43Z", "2262-04-11T23:47:17Z", "1969-12-31T23:59:59Z", "2200-01-01", "1970-01-01T00:00+14:00", "99999-01-01",
    "2025-02-30", "2025-10-06T12:00+99:00", "2025-10-06T25:00", "2025-W40-1", "P1D", "10:00",
)  # fmt: skip


@pytest.mark.parametrize("text", TIMES)
def test_a_time_that_is_none_or_of_no_use_is_refused(text):
    with pytest.raises(SettingsError, match=r"--at .*expected a time (such as|from the year 1970 to 2199)"):
        parse_time(text, "--at")


def test_times_of_use_are_read():
    noon = pd.Timestamp("2025-10-06T12:00Z")
    for text in (
        "2025-10-06T12:00",
        "2025-10-06T12:00Z",
        "2025-10-07T02:00+14:00",
        "20251006T12:00",
        "2025-10-06T12:00:00.000000001Z",
    ):
        assert parse_time(text, "--at") == noon
    assert parse_time("1970-01-01", "--at").year == 1970
    assert parse_time("2199-12-31T23:59:59Z", "--at").year == 2199


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a warehouse of two markets, and its settings."""
    folder = tmp_path_factory.mktemp("absurd")
    with open_store(folder / "slackwater.duckdb") as store:
        fill(store, "us-west-2a")
        fill(store, "us-west-2b")
    return folder


def fill(store, zone, *, source="lab", **more):
    """Add four days of a market, every half hour."""
    fill_all(store, {zone: more}, source=source)


def fill_all(store, zones, *, source="lab"):
    """Add the markets of the zones in one import; each has price, count, and other fields of its counts."""
    times = pd.date_range(AT - pd.Timedelta(days=4), AT, freq=HALF)
    priced, counted = [], []
    for zone, more in zones.items():
        same = {"zone": zone, "source": source}
        own = {"gap_seconds": 1800, "capacity": 8, "file": zone + source} | more
        price, count = own.pop("price", 1.0), own.pop("count", 8)
        priced += [price_row(at, price, on_demand_usd=3.0, **same) for at in times]
        counted += [count_row(at, count, **same, **own) for at in times]
    append(store, [*prices(*priced), *counts(*counted)], source=source, imported_at=AT)


@pytest.mark.parametrize("words", [
    ("markets", "--at"), ("job", "list", "--at"), ("plan", "x", "--at"), ("status", "--at"), ("status", "--since"),
    ("status", "--until"), ("export", "out", "--since"), ("job", "report", "x", "--spot", "1", "--at"),
    ("job", "report", "x", "--spot", "1", "--known-at"), ("job", "change", "x", "--deadline"), ("accuracy", "--since"),
    ("report", "--at"), ("fleet", "plan", "--at"),
])  # fmt: skip
def test_every_command_refuses_times_of_no_use(folder, words, monkeypatch):
    monkeypatch.chdir(folder)
    for text in ("0001-01-01", "9999-12-31T23:59:59-14:00", "2262-04-12", "now then", ""):
        called = call(*words, text)
        assert called.code == 2, (words, text, called.out)
        assert "expected a time" in called.err
    assert not Path("out").exists()


def test_a_map_of_too_many_slots_is_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    called = call("status", "--at", "2026-03-10", "--since", "1970-01-01")
    assert (called.code, "expected at most 20,000; give a later --since" in called.err) == (2, True)


def test_a_replay_before_the_record_is_refused(folder, monkeypatch, tmp_path):
    monkeypatch.chdir(folder)
    file = Path(__file__).parents[2] / "examples" / "llama-8b-lora.toml"
    called = call(
        "replay", "--job", file, "--market", "aws/us-west-2/us-west-2a/p3.2xlarge", "--from", "1970-01-01"
    )
    assert called.code == 2
    assert "the record of aws/us-west-2/us-west-2a/p3.2xlarge@lab begins at 2026-03-06" in called.err


# ---
# Rows of any size.


@pytest.mark.parametrize(("row", "reason"), [
    ({"capacity": 1e9, "available": 8}, "capacity 1000000000.0 is more than 1,000,000 instances"),
    ({"capacity": None, "available": LARGEST_COUNT + 1}, "available 1000001 is more than 1,000,000 instances"),
    ({"available": 1e300, "capacity": 1e300}, "is more than 1,000,000 instances"),
    ({"gap_seconds": SHORTEST_GAP / 2}, "gap_seconds 0.5 is not within a second and a year"),
    ({"gap_seconds": 5e-324}, "is not within a second and a year"),
    ({"gap_seconds": LONGEST_GAP * 2}, "is not within a second and a year"),
])  # fmt: skip
def test_a_row_that_no_market_has_is_set_aside(row, reason):
    with open_store(":memory:") as store:
        done = append(store, counts(count_row(AT, 8) | row), source="lab", imported_at=AT)
        assert (done.added, done.rejected) == (0, 1)
        ((found,),) = store.execute("SELECT reason FROM rejected")
    assert reason in found


def test_the_largest_row_that_is_taken_is_used():
    with open_store(":memory:") as store:
        fill(store, "us-west-2a", count=LARGEST_COUNT, capacity=LARGEST_COUNT)
        market = Market.parse("aws/us-west-2/us-west-2a/p3.2xlarge")
        history = load_history(store, market, end=AT, known_at=AT, step=HALF)
    assert history.capacity == LARGEST_COUNT


SETTINGS = Settings(
    models=("last_value",),
    planner="last_value",
    measured_origins=1,
    horizon=2,
    planning_horizon=4,
    risk_paths=10,
)


def two_jobs(store):
    requests = [
        parse_request(
            JOB | {"name": name, "market": f"aws/us-west-2/us-west-2{name}/p3.2xlarge", "deadline_in": "6h"},
            "j",
        )
        for name in "ab"
    ]
    turn = make_turn(store, AT, SETTINGS)
    turn = make_turn(store, AT, SETTINGS, reads=Reads(store))
    return turn, find_work(turn, requests, scored=())


def decided(turn, work):
    forecast_turns([turn], [work])
    made = decide_jobs([turn], [work], read_pool(turn))[0]
    return [row["job"] for row in made.rows], [*work.left_out, *made.left_out]


def test_a_stored_row_of_any_size_costs_its_market_and_the_neighbour_is_decided():
    with open_store(":memory:") as store:
        fill(store, "us-west-2a")
        fill(store, "us-west-2b")
        # An older version accepted it.
        store.execute(
            "UPDATE availability SET capacity = 1000000000 WHERE sid = (SELECT max(sid) FROM series WHERE kind = 'availability')"
        )
        rows, left_out = decided(*two_jobs(store))
    assert rows == ["a"]
    text = " ".join(left_out)
    assert "has a row of lab with 1,000,000,000 instances; expected at most 1,000,000" in text
    assert "job b is left out" in text


@pytest.mark.parametrize(
    "error", quick_first([np._core._exceptions._ArrayMemoryError((10**12,), np.dtype(float)), MemoryError()])
)
def test_a_lack_of_memory_costs_its_own_job(monkeypatch, error):
    real = competition.decide

    def decide(live, *args, **more):
        if live.run.name == "b":
            raise error
        return real(live, *args, **more)

    monkeypatch.setattr(competition, "decide", decide)
    with open_store(":memory:") as store:
        fill(store, "us-west-2a")
        fill(store, "us-west-2b")
        rows, left_out = decided(*two_jobs(store))
    assert rows == ["a"]
    assert any(text.startswith("job b is not decided: not enough memory: ") for text in left_out)


def test_a_market_that_cannot_be_forecast_stops_no_other(monkeypatch):
    module = __import__("slackwater.flows.turn.forecast", fromlist=["issue_and_measure"])
    real = module.issue_and_measure

    def forecast(history, **more):
        if history.market.zone == "us-west-2b":
            raise MemoryError
        return real(history, **more)

    monkeypatch.setattr(module, "issue_and_measure", forecast)
    assert forecast_market.__module__ == module.__name__
    with open_store(":memory:") as store:
        fill(store, "us-west-2a")
        fill(store, "us-west-2b")
        rows, _ = decided(*two_jobs(store))
        details = store.execute("SELECT details FROM runs WHERE stage = 'forecast'")[0][0]
    assert rows == ["a", "b"]  # b without a forecast
    assert "is left out: not enough memory" in str(details)


# ---
# max_markets, and sources that contradict each other.


def test_max_markets_beyond_the_usual_is_honoured():
    with open_store(":memory:") as store:
        fill_all(store, {f"zone-{k:02d}": {"kind": "offers" if k > 24 else "probe"} for k in range(30)})
        followed = {
            most: len(choose_markets(make_turn(store, AT, SETTINGS), most=most)) for most in (3, 24, 28, 100)
        }
    assert followed == {3: 3, 24: 22, 28: 28, 100: 30}


def test_sources_that_contradict_each_other_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    market = Market.parse("aws/us-west-2/us-west-2a/p3.2xlarge")
    with open_store(tmp_path / "slackwater.duckdb") as store:
        fill(store, "us-west-2a", source="alpha", price=2.0, count=8)
        fill(store, "us-west-2a", source="beta", price=4.0, count=0)
        fill(store, "us-west-2a", source="gamma", price=2.1, count=7)
        history = load_history(store, market, end=AT, known_at=AT, step=HALF)
        other = load_history(store, market, end=AT, known_at=AT, step=HALF, source="beta")
        later = load_history(store, market, end=AT, known_at=AT, step=HALF, trust=["gamma"])
    (told,) = history.contradicted
    assert told.startswith(
        "aws/us-west-2/us-west-2a/p3.2xlarge: alpha, which is used, has 2 USD (2026-03-10 00:00 UTC) and 8 spot instances"
    )
    assert "; beta has 4 USD (2026-03-10 00:00 UTC) and 0 spot instances" in told
    assert len(other.contradicted) == 2
    assert "gamma, which is used" in later.contradicted[0]
    called = call("markets")
    assert (
        "SOURCES DISAGREE: aws/us-west-2/us-west-2a/p3.2xlarge: alpha, which is used, has 2 USD"
        in called.said
    )


def test_of_a_market_unseen_for_a_day_the_chance_of_spot_is_that_of_measured_markets():
    late = AT + pd.Timedelta(days=1)
    with open_store(":memory:") as store:
        fill(store, "us-west-2a")
        request = parse_request(
            JOB
            | {
                "name": "a",
                "market": "aws/us-west-2/us-west-2a/p3.2xlarge",
                "deadline_in": "6h",
                "value_usd": 15.0,
            },
            "j",
        )
        turn = make_turn(store, late, SETTINGS)
        work = find_work(turn, [request], scored=())
        forecast_turns([turn], [work])
        (row,) = decide_jobs([turn], [work], read_pool(turn))[0].rows
    assert "spot in the next slot" in row["reason"]
    assert row["evidence"] == 3
    assert row["evidence_basis"].startswith("availability not observed for 24 h, assumed from ")
    assert 0.0 <= row["late_probability"] <= 1.0
    assert "24 hours before this slot" in row["stale"]
