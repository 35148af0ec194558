"""Reserve (M4.10): wait for spot while there is slack, then full speed."""

import pytest
from make import make_job, make_view

from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.policies.reserve import Reserve, slack_hours
from slackwater.warehouse.errors import SettingsError


def decided(policy=None, **changes):
    policy = policy or Reserve()
    view = make_view(make_job(), **changes)
    return policy.decide(policy.start(view.job), view)[0]


def test_it_waits_for_spot_while_the_slack_is_longer_than_the_reserve():
    # 40 units of work on 8 instances take 5 of 10 hours.
    assert slack_hours(make_view()) == pytest.approx(5.0)
    assert decided(available=3) == Allocation(0, 3)
    assert decided(available=0) == Allocation(0, 0)


def test_at_the_reserve_it_runs_at_full_speed_with_spot_first():
    # At slot 4 the slack is 1 hour.
    assert decided(slot=4, available=3) == Allocation(5, 3)
    assert decided(slot=4, available=0, n_previous=8) == Allocation(8, 0)
    assert decided(slot=4, available=8, n_previous=8) == Allocation(0, 8)
    assert decided(slot=3, available=0) == Allocation(0, 0)
    assert decided(Reserve(minutes=120.0), slot=3, available=0) == Allocation(8, 0)


def test_between_slots_the_rest_of_the_slot_counts():
    view = make_view(slot=3, elapsed_hours=0.5)
    assert slack_hours(view) == pytest.approx(1.5)
    assert decided(slot=3, available=0, elapsed_hours=1.0) == Allocation(8, 0)


def test_the_slack_includes_a_restart():
    view = make_view(make_job(mu_up=0.75))
    assert slack_hours(view) == pytest.approx(4.75)


def test_instances_are_not_restarted_for_spot_that_does_not_make_up_for_it():
    job = make_job(mu_up=0.8)
    policy = Reserve()
    grown = policy.decide(None, make_view(job, available=6, n_previous=4))[0]
    assert grown == Allocation(0, 6)  # 0.8 x 6 > 4
    kept = policy.decide(None, make_view(job, available=5, n_previous=4))[0]
    assert kept == Allocation(0, 4)  # 0.8 x 5 = 4


def test_its_name_has_the_reserve_in_minutes():
    assert policy_named("Reserve") == Reserve()
    assert policy_named("Reserve(30)") == Reserve(minutes=30.0)
    assert Reserve(minutes=90.0).name == "Reserve(90)"
    with pytest.raises(SettingsError, match="reserve of -1"):
        Reserve(minutes=-1.0)


def test_it_says_that_the_reserve_is_reached():
    view = make_view(slot=4, available=3)
    told = Reserve().explain(None, view, decided(slot=4, available=3))
    assert told.endswith("(the last 60 minutes of slack are kept)")
    assert "kept" not in Reserve().explain(None, make_view(), Allocation(0, 4))
