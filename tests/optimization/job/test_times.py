"""Times of instances: given before assumed, measured before both, with their origin, and their bounds (M12.9)."""

import pytest
from make import request_terms

from slackwater.optimization.job.definition import InstanceTimes
from slackwater.optimization.job.request import JobRequest, check_change, parse_request
from slackwater.optimization.job.times import TIME_KEYS, instance_times, stated_times, times_rows
from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import JobError

NO_OVERHEAD = {"resumable": True}


def request(**changes):
    return parse_request(request_terms(**changes), "job.toml")


def told(asked, provider="aws", measured=None):
    return {time.key: (time.value, time.origin) for time in stated_times(asked, provider, measured)}


def test_every_assumption_has_a_source_and_a_provider_differs_only_in_what_it_documents():
    known = read_data("slackwater.optimization", "instance_times")
    assert set(TIME_KEYS) <= set(known["other"])
    for table in [table for name, table in known.items() if name != "as_of"]:
        assert {key for key in table if key in TIME_KEYS} == set(table["sources"])


def test_what_a_job_does_not_state_is_assumed_for_its_provider():
    asked = request(checkpoint=NO_OVERHEAD)
    assert told(asked)["notice_seconds"] == (120.0, "assumed for AWS")
    assert told(asked, "gcp")["notice_seconds"] == (30.0, "assumed for Google Cloud")
    assert told(asked, "vast.ai")["notice_seconds"] == (0.0, "assumed for vast.ai")
    assert told(asked)["restart_minutes"] == (4.0, "assumed for AWS")


def test_a_given_time_replaces_the_assumption_also_where_it_is_0():
    asked = request(boot_minutes=0, notice_seconds=0, restart_minutes=7)
    assert told(asked)["boot_minutes"] == (0.0, "given")
    assert told(asked)["restart_minutes"] == (7.0, "given")
    assert instance_times(asked, "aws") == InstanceTimes(
        boot=0.0, restart=420.0, checkpoint=600.0, notice_saves=False, on_demand_wait=0.0
    )


def test_the_overhead_of_a_change_of_size_is_the_restart_of_a_job_that_states_no_other():
    assert told(request())["restart_minutes"] == (3.0, "given")


def test_measured_times_replace_given_ones():
    assert told(request(boot_minutes=1), measured={"boot_minutes": 5.5})["boot_minutes"] == (5.5, "measured")


@pytest.mark.parametrize(("seconds", "saves"), [(59, False), (60, True)])
def test_a_notice_saves_if_it_is_as_long_as_writing_a_checkpoint_takes(seconds, saves):
    assert instance_times(request(notice_seconds=seconds), "gcp").notice_saves is saves


def test_rows_are_of_every_provider_that_the_markets_name():
    asked = request(markets=["gcp/*/*/p3.2xlarge", "a*/*/*/p3.2xlarge"])
    assert {row["provider"] for row in times_rows(asked)} == {"gcp", "aws", "azure"}
    assert {row["provider"] for row in times_rows(request(market="runpod/us/us/x"))} == {"runpod"}


@pytest.mark.parametrize("key", TIME_KEYS)
def test_times_are_bounded_kept_in_json_and_may_change(key):
    with pytest.raises(JobError, match=key):
        request(**{key: 1e6})
    with pytest.raises(JobError, match=key):
        request(**{key: -1})
    changed = request(**{key: 0})
    assert JobRequest.model_validate_json(changed.model_dump_json()) == changed
    assert key not in request().model_dump()
    check_change(request(), changed)
