"""Requests for multi-market jobs: parsing, validation, matching markets, and the time and cost of moves (M11.2, M11.3)."""

import json

import numpy as np
import pandas as pd
import pytest
from make import make_history

from slackwater.optimization.job import markets as job_markets
from slackwater.optimization.job.markets import check_types, egress_prices, egress_usd_per_gb, fits, moves
from slackwater.optimization.job.request import JobRequest, MovingTerms, parse_request
from slackwater.optimization.moving.definition import job_in_markets
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import JobError
from slackwater.warehouse.history import Market

STEP = pd.Timedelta("30min")
AT = pd.Timestamp("2026-01-05T10:00:00Z")
BASE = {
    "name": "demo",
    "deadline_in": "12h",
    "n_max": 4,
    "workload": {"amount": 10.0, "unit": "gpu_hours"},
    "throughput": {"form": "linear", "alpha": 2.0},
    "checkpoint": {"resumable": True, "overhead_minutes": 3},
}
A = Market.parse("gcp/us-east4/us-east4-a/a3-highgpu-1g")
B = Market.parse("gcp/us-east4/us-east4-b/a3-highgpu-1g")
C = Market.parse("gcp/us-east5/us-east5-a/a3-highgpu-1g")
AWS = Market.parse("aws/us-east-1/us-east-1a/p5.4xlarge")


def _request(**changes):
    return parse_request({**BASE, "markets": ["gcp/*/*/a3-highgpu-1g"], **changes}, "test")


def _history(market, on_demand_usd=5.0):
    return make_history(1.0, 2, slots=2, start=AT, market=market, on_demand_usd=on_demand_usd, capacity=4)


def _placed(**changes):
    return _request(**changes).with_place(at=AT, market=None, source=None)


def test_what_only_a_job_that_may_move_says_is_not_written_for_others():
    plain = parse_request(BASE, "test")
    assert not plain.may_move
    assert not {"markets", "moving", "throughput_on"} & set(json.loads(plain.model_dump_json()))
    asked = _request(moving={"minutes": 5}, throughput_on={"p5.4xlarge": {"form": "linear"}})
    assert asked.may_move
    assert JobRequest.model_validate_json(asked.model_dump_json()) == asked


@pytest.mark.parametrize("text", ["gcp/*/a3", "", "gcp//*/x", "gcp/*/*/a3@"])
def test_a_pattern_that_is_none_is_refused_with_what_would_be_one(text):
    with pytest.raises(JobError, match="provider/region/zone/instance_type") as caught:
        _request(markets=[text])
    assert "slackwater markets" in caught.value.remedy


def test_costs_of_moves_need_markets_to_move_among():
    with pytest.raises(JobError, match="moving") as caught:
        parse_request({**BASE, "moving": {"minutes": 5}}, "test")
    assert "markets" in caught.value.expected


def test_markets_fit_by_shell_patterns_and_by_source():
    assert [fits(_request(), one, "s") for one in (A, B, C, AWS)] == [True, True, True, False]
    assert [fits(_request(markets=["gcp/us-east4/*/*@lab:*"]), A, s) for s in ("lab:x", "other")] == [
        True,
        False,
    ]
    # A star within one part does not extend into the next part.
    assert not fits(_request(markets=["aws*p5*/*/*/*"]), AWS, "s")
    assert fits(_request(markets=["*"]), AWS, "s")


def test_gpu_and_regions_narrow_the_markets():
    wide = {"markets": ["*"]}
    assert [fits(_request(**wide, gpu_type="h100"), one, "s") for one in (A, C, AWS)] == [True] * 3
    assert not fits(_request(**wide, gpu_type="A100"), A, "s")
    assert not fits(_request(**wide, gpu_type="h100"), Market.parse("x/y/z/unheard-of"), "s")
    assert [fits(_request(**wide, regions=["us-east5", "us-east-*"]), one, "s") for one in (A, C, AWS)] == [
        False,
        True,
        True,
    ]
    asked = _request(**wide, gpu_type="H100", regions=["us-*"])
    assert asked.where == "* with H100 in us-*"
    assert JobRequest.model_validate_json(asked.model_dump_json()) == asked
    plain = json.loads(parse_request(BASE, "test").model_dump_json())
    assert not {"gpu_type", "regions"} & set(plain)


def test_filters_that_can_fit_nothing_are_refused():
    with pytest.raises(JobError, match="gpu_type 'Z80'") as caught:
        _request(markets=["*"], gpu_type="Z80")
    assert "H100" in caught.value.expected
    with pytest.raises(JobError, match="regions 'gcp/us-east4'") as caught:
        _request(markets=["*"], regions=["gcp/us-east4"])
    assert "us-*" in caught.value.remedy
    for filters in ({"gpu_type": "H100"}, {"regions": ["us-*"]}):
        with pytest.raises(JobError, match="one market only"):
            parse_request({**BASE, "market": A.key, **filters}, "test")
        assert parse_request(
            {**BASE, **filters}, "test"
        ).names_no_market  # markets are proposed for such a request


def test_egress_is_by_zone_region_and_provider():
    assert egress_usd_per_gb(A, A) == 0.0
    assert egress_usd_per_gb(A, B) <= egress_usd_per_gb(A, C) < egress_usd_per_gb(A, AWS)
    assert egress_usd_per_gb(AWS, A) == pytest.approx(0.09)


def test_every_price_of_the_egress_table_is_read():
    """A price that `EgressPrices` lacks, or that a provider lacks, is refused."""
    providers = [
        name
        for name, table in read_data("slackwater.optimization", "egress").items()
        if isinstance(table, dict)
    ]
    assert len(providers) > 1
    for name in providers:
        prices = egress_prices(name)
        assert 0 <= prices.in_region <= prices.between_regions < prices.leaving


def test_an_unknown_key_of_a_provider_is_refused(monkeypatch):
    table = {"in_region": 0.0, "between_regions": 0.0, "leaving": 0.0, "at_night": 0.0}
    monkeypatch.setattr(job_markets, "read_data", lambda *place: {"aws": table})
    with pytest.raises(TypeError, match="at_night"):
        egress_prices("aws")


def test_moves_take_the_transfer_and_cost_the_egress():
    found = moves(_placed(moving=TERMS), [A, B, AWS], step=STEP)
    assert found.taken == pytest.approx(12 / 30)
    assert found.usd == pytest.approx(np.array([[[0, 2, 13], [2, 0, 13], [10, 10, 0]]]))
    given = moves(_placed(moving=TERMS | {"egress_usd_per_gb": 0.5}), [A, AWS], step=STEP)
    assert given.usd == pytest.approx(np.array([[[0, 51], [51, 0]]]))
    assert moves(_placed(), [A, B], step=STEP).usd.sum() == 0


#: Terms of a move, and another value of each key.
TERMS = {"minutes": 2, "usd": 1, "checkpoint_gb": 100, "bandwidth_gb_per_minute": 10}
OTHER = {"minutes": 3, "usd": 2, "checkpoint_gb": 50, "bandwidth_gb_per_minute": 5, "egress_usd_per_gb": 0.5}


@pytest.mark.parametrize("key", MovingTerms.model_fields)
def test_every_key_of_a_move_changes_its_time_or_cost(key):
    found, other = (
        moves(_placed(moving=terms), [A, B], step=STEP) for terms in (TERMS, TERMS | {key: OTHER[key]})
    )
    assert (found.taken, found.table.tolist()) != (other.taken, other.table.tolist())


def test_the_runs_agree_in_work_and_value_also_where_throughput_differs():
    asked = _placed(throughput_on={"p5.4xlarge": {"form": "linear", "alpha": 6.0}}, markets=["*"])
    job = job_in_markets(asked, [_history(A, 5.0), _history(B, 9.0), _history(AWS, 5.0)])
    assert [run.workload for run in job.runs] == [20.0] * 3
    assert [run.throughput.rate(1) for run in job.runs] == [2.0, 2.0, 6.0]
    # The value covers the most expensive market, so the job's location is never a reason to give up.
    dearest = job_in_markets(asked, [_history(B, 9.0)])
    assert {run.value for run in job.runs} == {dearest.job.value}
    assert job.home is None
    assert (
        job_in_markets(asked.model_copy(update={"market": A.key, "source": "s"}), [_history(A, 5.0)]).home
        == 0
    )


def test_two_instance_types_with_one_throughput_are_refused():
    with pytest.raises(JobError, match="a3-highgpu-1g and p5") as caught:
        check_types(_request(markets=["*"]), [A, AWS])
    assert "throughput_on" in caught.value.remedy
    check_types(_request(markets=["*"], throughput_on={"p5.4xlarge": {"form": "linear"}}), [A, AWS])
