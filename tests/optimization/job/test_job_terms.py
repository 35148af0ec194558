"""Work units, overheads and the value of a job with a hard deadline."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from make import make_job

from slackwater.optimization.job.definition import Amdahl, Job, Power, Progress, RateTable, on_demand_to_go
from slackwater.optimization.job.request import (
    LONGEST,
    MOST,
    MOST_SLOTS,
    VALUE_MARGIN,
    JobRequest,
    MovingTerms,
    check_bounds,
    mu_from_overhead,
    must_finish_value,
    parse_request,
    shortfall_words,
    slot_job,
)
from slackwater.optimization.job.units import workload_units
from slackwater.warehouse.errors import JobError


def test_overhead_becomes_a_share_of_the_slot():
    assert mu_from_overhead(0.0, 0.5) == 1.0
    assert mu_from_overhead(0.1, 0.5) == pytest.approx(0.8)
    assert mu_from_overhead(0.5, 0.5) == 0.0


def test_overhead_above_a_slot_is_a_debt_paid_back_when_the_change_ends():
    mu = mu_from_overhead(0.6, 0.25)
    assert mu == pytest.approx(-1.4)
    # 2.4 slots of overhead: after k slots on one instance exactly k - 2.4 slots of work are done.
    for slots in range(1, 6):
        assert mu + (slots - 1) == pytest.approx(slots - 0.6 / 0.25)


@pytest.mark.parametrize("overhead", [-0.1, float("inf"), float("nan")])
def test_an_overhead_that_is_none_is_refused(overhead):
    with pytest.raises(JobError, match="finite overhead"):
        mu_from_overhead(overhead, 0.5)


def test_units_of_work():
    tokens = Power(exponent=0.9, scale=2e6)
    assert workload_units(1e9, "tokens", tokens, 0.5) == 1e9
    assert workload_units(48, "instance_hours", tokens, 0.5) == pytest.approx(48 * 2e6)
    assert workload_units(48, "gpu_hours", tokens, 0.5, gpus=8) == pytest.approx(48 * 2e6 / 8)
    with pytest.raises(JobError, match="the number of GPUs of an instance"):
        workload_units(48, "gpu_hours", tokens, 0.5)
    assert workload_units(48, "slots", tokens, 0.25) == pytest.approx(48 * 2e6 * 0.25)
    with pytest.raises(JobError, match="gpu_hours"):
        workload_units(48, "days", tokens, 0.25)
    with pytest.raises(JobError, match="positive"):
        workload_units(float("nan"), "tokens", tokens, 0.25)


JOBS = [
    make_job(workload=30, deadline_slots=6, mu_up=0.6, mu_down=0.9, value=0),
    make_job(workload=90, n_min=2, n_max=5, throughput=Power(exponent=0.7), mu_up=0.9, value=0),
    make_job(workload=7, deadline_slots=9, n_max=1, gamma=1.25, value=0),
    make_job(deadline_slots=7, n_max=6, throughput=Amdahl(parallel=0.9), gamma=2.0, value=0),
    make_job(workload=9, deadline_slots=5, n_max=3, throughput=RateTable(rates=(1.0, 2.5, 2.0)), value=0),
    make_job(workload=9, deadline_slots=12, n_max=3, mu_up=-1.5, mu_down=-0.2, value=0),
    make_job(workload=4, deadline_slots=8, n_max=2, mu_up=-4.0, value=0),
    make_job(workload=3, deadline_slots=4, n_max=3, gamma=1.05, value=0),
]  # fmt: skip


def most_owed(job: Job) -> float:
    """Return the most work one slot can lose: a change to n_max that lasts longer than the slot."""
    return max(0.0, -min(job.mu_up * job.n_max, job.mu_down * (job.n_max - 1))) * 0.5


def gives_up(job: Job, done: float, before: int, slot: int) -> bool:
    to_go = on_demand_to_go(job, done=done, n_previous=before, slot=slot, on_demand_usd=2.0, slot_hours=0.5)
    return to_go.n == 0


def can_finish(job: Job, done: float, before: int, slot: int) -> bool:
    """Return whether some constant n finishes in whole slots before gamma d.

    Steps slot by slot, unlike the code under test.
    """
    for n in range(job.n_min, job.n_max + 1):
        z, held, t = done, before, slot
        while t + 1 < job.late_limit:
            z += job.efficiency(n, held) * job.throughput.rate(n) * 0.5
            held, t = n, t + 1
            if z >= job.workload - 1e-9:
                return True
    return False


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_must_finish_never_gives_up_while_it_can_finish(job):
    job = replace(job, value=must_finish_value(job, on_demand_usd=2.0, slot_hours=0.5), must_finish=True)
    rng = np.random.default_rng(7)
    seen = 0
    owed = most_owed(job)
    for done in np.concatenate([[-2 * owed, -owed, 0.0], rng.uniform(-owed, job.workload * 0.999, 40)]):
        for before in range(job.n_max + 1):
            for slot in range(job.deadline_slots + 1):
                if done >= -slot * owed and can_finish(job, done, before, slot):
                    seen += 1
                    assert not gives_up(job, done, before, slot), (done, before, slot)
    assert seen > 0


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_must_finish_is_the_least_such_value(job):
    value = must_finish_value(job, on_demand_usd=2.0, slot_hours=0.5) / (1 + VALUE_MARGIN)
    cheap = replace(job, value=0.999 * value)
    gain = [job.throughput.rate(n) * 0.5 for n in range(job.n_max + 1)]
    last = int(np.ceil(job.late_limit)) - 1
    given_up = False
    for slot in range(job.deadline_slots + 1):
        for before in range(job.n_max + 1):
            ks = last - slot
            most = max(
                (job.efficiency(n, before) + ks - 1) * gain[n] for n in range(job.n_min, job.n_max + 1)
            )
            rest = min(job.workload + slot * most_owed(job), most)
            done = job.workload - rest
            if ks >= 1 and can_finish(cheap, done, before, slot):
                given_up |= gives_up(cheap, done, before, slot)
    assert given_up


def test_must_finish_scales_with_the_price():
    one = must_finish_value(JOBS[0], on_demand_usd=1.0, slot_hours=1.0)
    assert must_finish_value(JOBS[0], on_demand_usd=3.0, slot_hours=1.0) == pytest.approx(3 * one)


PLAIN = {
    "name": "plain", "n_max": 8, "deadline_in": "1h",
    "workload": {"amount": 64, "unit": "instance_hours"}, "throughput": {"form": "linear"}, "checkpoint": {"resumable": True},
}  # fmt: skip
AT = pd.Timestamp("2026-03-10T00:00Z")
HALF = pd.Timedelta(minutes=30)


def placed(**more):
    request = parse_request(PLAIN | more, "plain.toml")
    return request.with_place(at=AT, market="a/b/c/d", source=None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"n_max": 1_000_000}, "n_max = 1e\\+06; expected at most 1,024 instances"),
        ({"decay": float("inf")}, "decay: Input should be a finite number"),
        ({"value_usd": 1e300}, "value_usd = 1e\\+300; expected at most"),
        ({"workload": {"amount": 1e300, "unit": "slots"}}, "workload.amount = 1e\\+300; expected at most"),
        (
            {"throughput": {"form": "power", "exponent": 1000}},
            "throughput.exponent = 1000; expected at most 2 ",
        ),
        ({"throughput": {"form": "linear", "beta": -1e300}}, "throughput.beta = -1e\\+300"),
        ({"throughput": {"form": "table", "rates": [1.0, 1e300]}}, "throughput.rates = 1e\\+300"),
        (
            {"checkpoint": {"resumable": True, "overhead_minutes": 1e300}},
            "checkpoint.overhead_minutes = 1e\\+300",
        ),
        (
            {"deadline": "9999-12-31T00:00:00Z", "deadline_in": None},
            "deadline = 9999-12-31; expected a time from 1970",
        ),
        ({"deadline_in": "20"}, "'20' has no unit; expected a duration such as 20min, 20h or 20d"),
        ({"deadline_in": 20}, "20 has no unit"),
        ({"deadline_in": "101d"}, "101 days after its start; expected at most 100 days"),
        ({"deadline_in": "9e300d"}, "expected a duration"),
        ({"markets": ["*"], "moving": {"usd": 1e300}}, "moving.usd = 1e\\+300"),
    ],
)
def test_what_no_job_can_mean_is_refused_with_the_bound(more, said):
    with pytest.raises(JobError, match=said):
        placed(**more)


@pytest.mark.parametrize(
    ("throughput", "words"),
    [
        (
            {"kind": "linear"},
            r'missing: throughput\.form; expected for example throughput = \{ form = "linear" \}',
        ),
        ({"form": "lin"}, r"throughput\.form: 'lin', expected 'linear', 'amdahl', 'power', 'table'"),
    ],
)
def test_a_throughput_without_a_known_form_is_refused_in_plain_words(throughput, words):
    with pytest.raises(JobError, match=words):
        parse_request({**PLAIN, "throughput": throughput}, "j.toml")


def test_a_job_file_hears_of_everything_that_is_wrong_at_once():
    with pytest.raises(JobError) as told:
        parse_request(
            {"name": "x", "deadline_in": "9h", "workload": {"amount": 1, "unit": "slots", "n_max": 8}},
            "j.toml",
        )
    assert str(told.value).startswith(
        "job file j.toml: n_max stands in [workload] and belongs above the first table; missing: throughput, checkpoint; "
        'expected for example throughput = { form = "linear" }, checkpoint = { resumable = true'
    )
    with pytest.raises(
        JobError,
        match=r"checkpont is no key of a job, perhaps checkpoint, checkpoint_minutes; missing: checkpoint",
    ):
        parse_request(
            {key: value for key, value in PLAIN.items() if key != "checkpoint"} | {"checkpont": 1}, "j.toml"
        )
    with pytest.raises(
        JobError, match=r"workload\.amout is no key of a job, perhaps amount; missing: workload\.amount"
    ):
        parse_request(PLAIN | {"workload": {"amout": 4, "unit": "slots"}}, "j.toml")


@pytest.mark.parametrize(("key", "value", "words"), [
    ("on_demand_usd", 0, "on_demand_usd: Input should be greater than 0"),
    ("on_demand_usd", "cheap", "on_demand_usd: Input should be a valid number, unable to parse string as a number"),
    ("on_demand_usd", {"aws/*/*/*": 0}, "on_demand_usd.aws/*/*/*: Input should be greater than 0"),
    ("on_demand_usd", [1], "on_demand_usd: Input should be a valid number"),
    ("on_demand", "x", "on_demand: Input should be a valid boolean, unable to interpret input"),
    ("regions", "us", 'regions: Input should be a list, such as ["..."]'),
])  # fmt: skip
def test_a_key_with_several_types_is_refused_for_the_type_it_has(key, value, words):
    job = {
        "name": "j",
        "deadline_in": "6h",
        "n_max": 2,
        "workload": {"amount": 2, "unit": "instance_hours"},
        "throughput": {"form": "linear"},
        "checkpoint": {"resumable": True, "overhead_minutes": 3},
    }
    with pytest.raises(JobError) as caught:
        parse_request(job | {key: value}, "job.toml")
    assert str(caught.value).startswith(f"job file job.toml: {words}; `slackwater init")


def test_every_bound_can_be_reached():
    keys = {key.rpartition(".")[::2] for key in MOST}
    forms = {"throughput": ("alpha", "beta", "scale", "exponent", "rates")}
    for part, field in keys:
        known = field in str(JobRequest.model_json_schema()) or hasattr(MovingTerms, field)
        assert field in forms.get(part, ()) or known
    assert placed(n_max=1024).n_max == 1024
    assert placed(deadline_in=f"{LONGEST.days}d").ends == AT + LONGEST
    with pytest.raises(JobError, match=f"{10 * 24 * 20 * 10:,} slots .* at most {MOST_SLOTS:,}"):
        slot_job(placed(deadline_in="100d"), step=pd.Timedelta(minutes=3), on_demand_usd=1.0)


def test_a_stored_job_out_of_bounds_is_told_without_its_file():
    with pytest.raises(JobError, match=r"job 'plain': decay = 1e\+06"):
        check_bounds(JobRequest.model_validate(PLAIN | {"decay": 1e6}))


def test_what_cannot_be_done_says_by_how_much_and_what_would_do():
    job = slot_job(placed(), step=HALF, on_demand_usd=1.0)
    assert shortfall_words(job, AT, HALF) == (
        "cannot be done by 2026-03-10 01:00 UTC: 8 on-demand instances, its fastest size, need 8 h for the rest, "
        "7 h more than the 1 h left; 64 instances or a deadline of 2026-03-10 08:00 UTC would do; no instances "
        "finish it by 2026-03-10 01:30 UTC, and it is given up then"
    )
    late = slot_job(
        placed(workload={"amount": 36, "unit": "instance_hours"}, deadline_in="4h"),
        step=HALF,
        on_demand_usd=1.0,
    )
    assert shortfall_words(late, AT, HALF).endswith(
        "9 instances or a deadline of 2026-03-10 04:30 UTC would do; best effort is done by 2026-03-10 04:30 UTC, late"
    )
    # Work done counts: after half of the work the other half still fits, unless too little time is left.
    half = Progress(done=18.0, n_previous=8)
    assert shortfall_words(late, AT, HALF, slot=3, progress=half) == ""
    # The work ends within the last slot; a deadline is a whole slot.
    short = shortfall_words(late, AT, HALF, slot=5, progress=half)
    assert "need 2.2 h for the rest, 45 min more than the 1.5 h left" in short
    assert "a deadline of 2026-03-10 05:00 UTC would do; best effort is done by 2026-03-10 04:45 UTC" in short
    table = replace(late, throughput=RateTable(rates=tuple(float(n) for n in range(1, 9))))
    assert " instances or" not in shortfall_words(table, AT, HALF), "a table says nothing of more than it has"
