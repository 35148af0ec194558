"""Own launches from reports: the state of a request by slot, and the instances that follow from a decision (M13.1)."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from slackwater.flows.ledger.open_job import launches_of
from slackwater.flows.ledger.reports import Report, with_advised
from slackwater.optimization.belief.archetypes import ALL, NONE, PART
from slackwater.optimization.belief.launches import Launch
from slackwater.optimization.job.definition import Allocation

BEGIN, STEP = pd.Timestamp("2026-11-25T12:00Z"), pd.Timedelta("30min")
HERE = "aws/us-east-1/us-east-1a/p4d.24xlarge"


def report(minutes, **terms):
    when = BEGIN + pd.Timedelta(minutes=minutes)
    return Report(job="demo", reported_at=when, known_at=when, **terms)


def launches(*reports, spot=4, market=None, place=HERE):
    decided = {BEGIN + k * STEP: (place, Allocation(1, spot)) for k in range(8)}
    return launches_of(reports, decided, market, start=BEGIN, step=STEP)


@pytest.mark.parametrize(
    ("terms", "state", "held"),
    [
        ({"asked": 4, "granted": 2}, PART, 0),
        ({"asked": 4, "granted": 4}, ALL, 0),
        ({"asked": 2, "granted": 0}, NONE, 0),
        ({"lost": 4, "spot": 0}, NONE, 1),
        ({"lost": 1, "spot": 3, "held_minutes": 180.0}, PART, 6),
        ({"spot": 4}, ALL, 0),
        ({"spot": 3}, PART, 0),
        ({"spot": 0}, NONE, 0),
        ({"held_minutes": 60.0}, ALL, 2),
    ],
)
def test_the_state_of_a_request_counts_from_the_next_slot(terms, state, held):
    assert launches(report(40, **terms)) == [Launch(slot=2, state=state, held=held)]


def test_a_report_that_says_nothing_of_a_request_is_no_launch():
    assert launches(report(40, progress=3.0)) == []
    assert launches(report(40, spot=0), spot=0) == []


def test_a_launch_belongs_to_the_market_it_was_made_in():
    other = HERE.replace("1a/", "1b/")
    assert launches(report(40, spot=4), market=other) == []
    assert len(launches(report(40, spot=4), market=HERE)) == 1
    assert len(launches(report(40, spot=4, market=other), market=other)) == 1
    assert launches(report(40, spot=0, on_demand=2, market=other), market=other) == []  # not asked for there


@pytest.mark.parametrize(
    ("terms", "asked", "spot", "on_demand"),
    [
        ({"granted": 2}, 4, 2, 1),
        ({"granted": 2, "asked": 3, "on_demand": 0}, 3, 2, 0),
        ({"lost": 3}, None, 1, 1),
        ({"lost": 3, "spot": 0}, None, 0, 1),
        ({"held_minutes": 60.0}, None, None, None),
        ({"progress": 3.0}, None, None, None),
    ],
)
def test_instances_follow_from_the_decision_of_the_slot(terms, asked, spot, on_demand):
    said, decided = report(40, **terms), {BEGIN + STEP: Allocation(1, 4)}
    found = with_advised(said, SimpleNamespace(start=BEGIN, step=STEP), decided)
    assert found == replace(said, asked=asked, spot=spot, on_demand=on_demand)
