"""GPUs and instances: sizes, work and throughput of jobs on instances with several GPUs (M2.1, M2.2)."""

import pandas as pd
import pytest
from make import make_history

from slackwater.optimization.job.definition import rates
from slackwater.optimization.job.markets import fits
from slackwater.optimization.job.request import check_change, parse_request, shortfall_words, slot_job
from slackwater.optimization.job.units import (
    can_run_on,
    instance_range,
    job_work_words,
    request_words,
    rounding_notes,
    size_words,
    works_words,
)
from slackwater.optimization.moving.definition import job_in_markets
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import Market

STEP = pd.Timedelta("30min")
AT = pd.Timestamp("2026-01-05T10:00:00Z")
P4D = Market.parse("aws/us-east-1/us-east-1a/p4d.24xlarge")
P5 = Market.parse("aws/us-east-1/us-east-1a/p5.48xlarge")
P5_ONE = Market.parse("aws/us-east-1/us-east-1a/p5.4xlarge")
A3_ONE = Market.parse("gcp/us-east5/us-east5-a/a3-highgpu-1g")
OFFER = Market.parse("primeintellect/any/all/H100_80GB_PCIe_x4")
BARE = Market.parse("primeintellect/any/all/H100_80GB_PCIe")
OWN = Market.parse("lab/r/z/my-node")
BASE = {
    "name": "demo", "deadline_in": "48h", "n_max": 8,
    "workload": {"amount": 320.0, "unit": "gpu_hours"}, "throughput": {"form": "linear"}, "checkpoint": {"resumable": True},
}  # fmt: skip


def asked(market=P4D, **more):
    values = {key: value for key, value in (BASE | more).items() if value is not None}
    return parse_request(values, "demo.toml").with_place(
        at=AT, market=market.key if market else None, source=None
    )


def in_gpus(market=P4D, **more):
    return asked(market, n_max=None, **more)


def job_of(request, market=None):
    return slot_job(request, step=STEP, on_demand_usd=32.0, market=market)


RTX = Market.parse("vast.ai/US/all/RTX_4090_24GB_x2")
N1 = Market.parse("gcp/us-central1/all/n1-standard-8+v100x4")


@pytest.mark.parametrize(
    ("market", "gpus"), [(P4D, 8), (P5_ONE, 1), (A3_ONE, 1), (OFFER, 4), (RTX, 2), (N1, 4)]
)
def test_gpu_hours_are_hours_of_gpus_on_every_instance_type(market, gpus):
    job = job_of(asked(market))
    assert (job.workload, job.gpus) == (320.0 / gpus, gpus)
    same = job_of(asked(market, workload={"amount": 320.0 / gpus, "unit": "instance_hours"}))
    assert same == job
    slots = job_of(asked(market, workload={"amount": 640.0 / gpus, "unit": "slots"}))
    assert slots == job


def test_sizes_in_gpus_are_whole_instances_and_the_same_job():
    assert job_of(in_gpus(gpus_min=16, gpus_max=64)) == job_of(asked(n_min=2, n_max=8))
    assert job_of(in_gpus(gpus_max=64)) == job_of(asked())


@pytest.mark.parametrize(
    ("least", "most", "found", "told"),
    [
        (None, 70, (1, 8), ["gpus_max = 70 is rounded down to 8 x p4d.24xlarge, 64 GPUs"]),
        (
            9,
            31,
            (2, 3),
            [
                "gpus_min = 9 is rounded up to 2 x p4d.24xlarge, 16 GPUs",
                "gpus_max = 31 is rounded down to 3 x p4d.24xlarge, 24 GPUs",
            ],
        ),
        (4, 8, (1, 1), ["gpus_min = 4 is rounded up to 1 x p4d.24xlarge, 8 GPUs"]),
        (1, 8, (1, 1), []),
    ],
)
def test_gpus_are_rounded_into_the_range_and_it_is_told(least, most, found, told):
    request = in_gpus(gpus_min=least, gpus_max=most)
    assert instance_range(request, P4D) == found
    assert rounding_notes(request, P4D) == told


@pytest.mark.parametrize(("least", "most", "remedy"), [(None, 7, "gpus_max = 8"), (12, 12, "gpus_max = 16")])
def test_a_range_without_a_whole_instance_is_refused(least, most, remedy):
    with pytest.raises(JobError, match=r"an instance of p4d.24xlarge has 8 GPUs") as caught:
        job_of(in_gpus(gpus_min=least, gpus_max=most))
    assert remedy in caught.value.remedy


@pytest.mark.parametrize(
    ("more", "found"),
    [
        ({"gpus_max": 64}, "n_min|n_max and gpus_max"),
        ({"gpus_min": 8}, "gpus_min"),
        ({"n_max": None, "n_min": 2, "gpus_max": 64}, "n_min and gpus_max"),
        ({"n_max": None, "gpus_min": 8}, "no gpus_max"),
        ({"n_max": None, "gpus_min": 9, "gpus_max": 8}, "gpus_min 9, gpus_max 8"),
        ({"n_max": None, "gpus_max": 0}, "gpus_max"),
        ({"n_max": None, "gpus_max": 1_000_000}, "at most 8,192 GPUs"),
        ({"n_max": None}, "missing: n_max or gpus_max|no n_max"),
        ({"n_max": None, "gpus_max": 8192, "gpus_per_instance": 1}, "8,192 instances"),
        ({"gpus_per_instance": 0}, "gpus_per_instance"),
    ],
)
def test_sizes_are_in_instances_or_in_gpus(more, found):
    with pytest.raises(JobError, match=found):
        job_of(asked(**more))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"workload": {"amount": 40.0, "unit": "instance_hours"}, "n_max": None, "gpus_max": 64},
        {"workload": {"amount": 40.0, "unit": "slots"}, "throughput": {"form": "linear", "per": "gpu"}},
        {"workload": {"amount": 4e9, "unit": "tokens"},
         "throughput": {"form": "power", "exponent": 0.9, "scale": 1e6, "per": "gpu"}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("market", [OWN, BARE])
def test_an_unknown_number_of_gpus_is_asked_for_where_it_matters(market, more):
    request = asked(market, **more)
    assert not can_run_on(request, market)
    with pytest.raises(JobError, match=f"how many GPUs an instance of {market.instance_type} has") as caught:
        job_of(request)
    assert "gpus_per_instance = 8" in caught.value.expected
    stated = request.model_copy(update={"gpus_per_instance": 8})
    assert job_of(stated).gpus == 8
    by_type = request.model_copy(update={"gpus_per_instance": {market.instance_type: 8}})
    assert job_of(by_type) == job_of(stated)


def test_a_job_in_instances_needs_no_gpus_and_shows_none():
    job = job_of(asked(OWN, workload={"amount": 40.0, "unit": "instance_hours"}))
    assert (job.workload, job.gpus) == (40.0, None)
    assert request_words(asked(OWN, workload={"amount": 40.0, "unit": "instance_hours"}), 0.5) == {
        "sizes": "1 to 8 x my-node",
        "work": "40 instance-hours",
    }


def test_what_is_stated_goes_before_the_catalogue_and_it_is_told():
    request = asked(gpus_per_instance=4)
    assert job_of(request).workload == 80.0
    assert rounding_notes(request, P4D) == [
        "gpus_per_instance = 4 is stated for p4d.24xlarge; the catalogue has 8"
    ]


FORMS = [
    {"form": "linear", "alpha": 2.0, "beta": 1.0},
    {"form": "amdahl", "parallel": 0.95, "scale": 3.0},
    {"form": "power", "exponent": 0.9, "scale": 3.0},
    {"form": "table", "rates": [float(n) ** 0.95 for n in range(1, 65)]},
]


@pytest.mark.parametrize("form", FORMS)
def test_throughput_per_gpu_is_that_of_all_gpus_of_the_instances(form):
    by_gpu = rates(job_of(asked(A3_ONE, throughput=form, n_max=64)).throughput, 64)
    job = job_of(asked(throughput=form | {"per": "gpu"}))
    assert rates(job.throughput, 8)[1:] == pytest.approx(by_gpu[8::8])
    assert job.workload == pytest.approx(320.0 / 8 * by_gpu[8])


def test_a_table_per_gpu_that_is_shorter_than_an_instance_is_refused():
    with pytest.raises(JobError, match="ends at 4 GPUs, and instances of 8"):
        job_of(asked(throughput={"form": "table", "per": "gpu", "rates": [1.0, 2.0, 3.0, 4.0]}))


def test_every_answer_has_instances_and_gpus():
    request = in_gpus(gpus_max=32)
    assert size_words(request, P4D) == "1 to 4 x p4d.24xlarge, 8 to 32 GPUs"
    assert job_work_words(request, job_of(request), P4D) == "320 GPU-hours = 40 instance-hours"
    late = job_of(asked(n_max=1).model_copy(update={"deadline": (AT + pd.Timedelta("10h")).to_pydatetime()}))
    told = shortfall_words(late, AT, STEP)
    assert "1 on-demand instance (8 GPUs)" in told
    assert "4 instances (32 GPUs) or" in told


def test_a_size_changes_in_the_unit_it_has():
    before = in_gpus(gpus_max=32)
    check_change(before, before.model_copy(update={"gpus_max": 64}))
    with pytest.raises(JobError, match="gpus_max = 16"):
        check_change(before, before.model_copy(update={"gpus_max": 16}))
    with pytest.raises(JobError, match="has its sizes in GPUs"):
        check_change(before, asked())
    with pytest.raises(JobError, match="has its sizes in instances"):
        check_change(asked(), before)


def test_what_is_stored_comes_back_and_jobs_in_instances_are_written_as_before():
    request = in_gpus(gpus_min=8, gpus_max=32, throughput={"form": "linear", "per": "gpu"})
    assert type(request).model_validate_json(request.model_dump_json()) == request
    plain = asked().model_dump(mode="json")
    assert (plain["n_min"], plain["n_max"]) == (1, 8)
    assert not {"gpus_min", "gpus_max", "gpus_per_instance"} & set(plain)
    assert "per" not in plain["throughput"]


# ---
# Multi-market jobs on instance types with different numbers of GPUs.


def history(market):
    return make_history(1.0, 2, slots=2, start=AT, market=market, on_demand_usd=32.0, capacity=4)


def moving(*markets, **more):
    return job_in_markets(asked(None, **more), [history(market) for market in markets]).runs


def test_each_instance_type_has_its_own_range_and_the_work_is_counted_on_the_type_of_the_throughput():
    two = {"markets": ["aws/*/*/p4d.24xlarge", "aws/*/*/p5.4xlarge"], "n_max": None, "gpus_max": 32}
    own = {"throughput_on": {"p5.4xlarge": {"form": "linear", "alpha": 0.4}}}
    large, small = moving(P4D, P5_ONE, **two, **own)
    assert [(run.n_min, run.n_max, run.gpus) for run in (large, small)] == [(1, 4, 8), (1, 32, 1)]
    assert large.workload == small.workload == 40.0
    # With only one of the types present the work is the same.
    (alone,) = moving(P5_ONE, **two, **own)
    assert alone.workload == 40.0
    request = asked(None, **two, **own)
    assert job_work_words(request, small, P5_ONE) == (
        "320 GPU-hours of p4d.24xlarge = 100 instance-hours of p5.4xlarge"
    )


def test_a_throughput_per_gpu_is_that_of_all_types_with_the_gpu():
    terms = {
        "markets": ["aws/*/*/p5.48xlarge", "aws/*/*/p5.4xlarge", "gcp/*/*/a3-highgpu-1g"], "n_max": None, "gpus_max": 16,
        "throughput": {"form": "linear", "alpha": 3.0, "per": "gpu"},
    }  # fmt: skip
    runs = moving(P5, P5_ONE, A3_ONE, **terms)
    assert works_words(asked(None, **terms), [(runs[0], P5), (runs[1], P5_ONE)]) == (
        "320 GPU-hours = 40 instance-hours of p5.48xlarge; 320 GPU-hours = 320 instance-hours of p5.4xlarge"
    )
    assert [(run.n_max, run.throughput.rate(1)) for run in runs] == [(2, 24.0), (16, 3.0), (16, 3.0)]
    assert {run.workload for run in runs} == {960.0}
    with pytest.raises(JobError, match=r"p5.48xlarge and p4d.24xlarge, and has one throughput"):
        moving(P5, P4D, **{**terms, "markets": ["aws/*/*/p*"]})


def test_work_that_differs_between_types_is_refused_in_words():
    terms = {"markets": ["aws/*/*/p5.*"], "throughput": {"form": "amdahl", "parallel": 0.95, "per": "gpu"}}
    for work in ({"amount": 320.0, "unit": "gpu_hours"}, {"amount": 320.0, "unit": "instance_hours"}):
        with pytest.raises(
            JobError, match=r"units of work on p5.* and .* on p5.*; expected an amount"
        ) as caught:
            moving(P5, P5_ONE, **terms, workload=work)
        assert "tokens" in caught.value.remedy
    terms["throughput"]["scale"] = 1.0
    runs = moving(P5, P5_ONE, **terms, workload={"amount": 320.0, "unit": "tokens"})
    assert {run.workload for run in runs} == {320.0}
    both = {"p5.48xlarge": {"form": "linear"}, "p5.4xlarge": {"form": "linear"}}
    with pytest.raises(JobError, match="each instance type it may run on has a throughput of its own"):
        moving(P5, P5_ONE, markets=["aws/*/*/p5.*"], throughput_on=both)


def test_a_type_too_large_for_the_sizes_does_not_fit_and_a_contradiction_is_refused():
    small = asked(None, markets=["aws/*/*/p5.*"], n_max=None, gpus_max=4)
    assert not fits(small, P5, "probe:test")
    assert fits(small, P5_ONE, "probe:test")
    one = {"form": "linear", "per": "gpu"}
    with pytest.raises(JobError, match=r"gpus_per_instance = 8, and an instance of p5.4xlarge has 1"):
        moving(P5, P5_ONE, markets=["aws/*/*/p5.*"], throughput=one, gpus_per_instance=8)
