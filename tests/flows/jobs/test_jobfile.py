"""Job files: accepted and refused files, and the resulting job in slots (M2.1)."""

from pathlib import Path

import pandas as pd
import pytest

from slackwater.flows.turn.work import example_requests
from slackwater.optimization.job.request import first_slot, parse_request, read_request, slot_job
from slackwater.warehouse.errors import JobError

AT = pd.Timestamp("2026-01-05T10:10:00Z")
STEP = pd.Timedelta("30min")
BASE = {
    "name": "demo",
    "deadline_in": "12h",
    "n_min": 1,
    "n_max": 4,
    "value_usd": 100.0,
    "workload": {"amount": 10.0, "unit": "instance_hours"},
    "throughput": {"form": "linear", "alpha": 2.0},
    "checkpoint": {"resumable": True, "overhead_minutes": 3, "shrink_overhead_minutes": 1.5},
}


def _placed(**changes):
    return parse_request({**BASE, **changes}, "test").with_place(at=AT, market="a/b/c/d", source="s")


def _slot_job(**changes):
    return slot_job(_placed(**changes), step=STEP, on_demand_usd=3.0)


def test_times_become_whole_slots_inside_the_real_ones():
    request = _placed()
    assert first_slot(request, STEP) == pd.Timestamp("2026-01-05T10:30:00Z")
    job = slot_job(request, step=STEP, on_demand_usd=3.0)
    assert job.deadline_slots == 23  # 10:30 to 22:10 contains 23 complete half hours
    assert job.mu_up == pytest.approx(0.9)
    assert job.mu_down == pytest.approx(0.95)


def test_workload_units():
    assert _slot_job().workload == pytest.approx(20.0)  # instance-hours of H(1) = 2 per hour
    assert _slot_job(workload={"amount": 10, "unit": "tokens"}).workload == pytest.approx(10.0)
    assert _slot_job(workload={"amount": 10, "unit": "slots"}).workload == pytest.approx(10.0)


def test_without_a_value_the_job_must_finish_and_says_so():
    job = _slot_job(value_usd=None)
    assert job.must_finish
    assert job.value > 23 * 4 * 3.0 * 0.5 * 0.1


def test_a_restart_may_take_longer_than_a_slot():
    job = _slot_job(checkpoint={"resumable": True, "overhead_minutes": 45, "shrink_overhead_minutes": 6})
    assert (job.mu_up, job.mu_down) == (pytest.approx(1 - 45 / 30), pytest.approx(1 - 6 / 30))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deadline_in": None}, "neither"),
        ({"deadline": "2026-01-06T00:00:00Z"}, "both"),
        ({"deadline_in": "soon"}, "duration"),
        ({"deadline_in": "-3h"}, "positive"),
        ({"deadline_in": None, "deadline": "2026-01-01T00:00:00Z"}, "not after its start"),
        ({"deadline_in": None, "deadline": "2026-01-06T00:00:00"}, "no time zone"),
        ({"deadline_in": "20min"}, "at least one slot"),
        ({"n_min": 5}, "n_min"),
        ({"throughput": {"form": "table", "rates": [1.0, 1.9]}}, "table ends at 2"),
    ],
)
def test_contradictions_are_refused_with_a_reason(changes, words):
    with pytest.raises(JobError, match=words):
        _slot_job(**changes)


@pytest.mark.parametrize("field", ["start", "deadline"])
@pytest.mark.parametrize("text", ["2026-01-06T00:00:00", "2026-01-06 00:00", "2026-01-06"])
def test_a_time_without_a_zone_is_refused_when_the_file_is_read(field, text):
    own = {"start": {}, "deadline": {"deadline_in": None}}[field]
    with pytest.raises(JobError, match=f"job file test: {field} 2026-01-06 00:00:00 has no time zone"):
        parse_request({**BASE, **own, field: text}, "test")


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"n_max": 0}, "n_max"),
        ({"colour": "red"}, "colour"),
        ({"workload": {"amount": -1, "unit": "tokens"}}, "workload.amount"),
        ({"workload": {"amount": 1, "unit": "parsecs"}}, "workload.unit"),
        ({"throughput": {"form": "magic"}}, "throughput"),
        ({"value_usd": -3}, "value_usd"),
        ({"decay": 1.0}, "decay"),
    ],
)
def test_a_wrong_key_is_named(changes, key):
    with pytest.raises(JobError, match=key):
        parse_request({**BASE, **changes}, "test")


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ({"form": "linear"}, "alpha"),
        ({"form": "power", "exponent": 0.9, "per": "gpu"}, "scale"),
        ({"form": "amdahl", "parallel": 0.9}, "scale"),
    ],
)
def test_work_in_tokens_needs_a_rate_in_tokens(form, key):
    tokens = {**BASE, "workload": {"amount": 4e9, "unit": "tokens"}}
    with pytest.raises(JobError, match=f"without {key}") as caught:
        parse_request({**tokens, "throughput": form}, "test")
    assert "tokens per hour" in caught.value.expected
    assert parse_request({**tokens, "throughput": form | {key: 1e6}}, "test")
    assert parse_request({**tokens, "throughput": {"form": "table", "rates": [1e6] * 64}}, "test")
    assert parse_request({**BASE, "throughput": form}, "test")


def test_a_broken_file_is_named(tmp_path: Path):
    file = tmp_path / "x.toml"
    file.write_text("name = ")
    with pytest.raises(JobError, match=r"x\.toml"):
        read_request(file)
    with pytest.raises(JobError, match=r"missing\.toml"):
        read_request(tmp_path / "missing.toml")


def test_every_example_is_a_job():
    requests = example_requests()
    assert len(requests) >= 3
    for request in requests:
        placed = request.with_place(at=AT, market="simulated/b/c/h100", source=None)
        assert slot_job(placed, step=STEP, on_demand_usd=3.0).deadline_slots >= 20
