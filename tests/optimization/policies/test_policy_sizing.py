"""Sizing (M4.11): the least number of instances that does the rest in the time left, spot first."""

from make import make_job, make_view, make_window

from slackwater.optimization.job.definition import Allocation, Amdahl
from slackwater.optimization.policies.baselines import OnDemandOnly
from slackwater.optimization.policies.sizing import Sizing
from slackwater.optimization.replay.run import replay


def decided(job=None, **changes):
    return Sizing().decide(None, make_view(job or make_job(), **changes))[0]


def test_the_least_size_that_is_in_time_spot_first():
    # 40 units of work in 10 hours need 4 instances.
    assert decided(available=8) == Allocation(0, 4)
    assert decided(available=3) == Allocation(1, 3)
    assert decided(available=3, price=1.0) == Allocation(4, 0)
    assert decided(available=8, slot=5) == Allocation(0, 8)


def test_a_restart_is_part_of_the_time():
    assert decided(make_job(mu_up=0.9), available=8) == Allocation(0, 5)
    assert decided(make_job(mu_up=0.9), available=8, n_previous=4) == Allocation(0, 4)


def test_between_slots_only_the_rest_of_the_slot_counts():
    assert decided(available=8, elapsed_hours=0.5) == Allocation(0, 5)


def test_a_change_to_one_instance_less_is_not_made():
    assert decided(available=8, n_previous=5) == Allocation(0, 5)
    assert decided(available=8, n_previous=6) == Allocation(0, 4)


def test_a_job_that_slows_down_when_it_grows_costs_less_than_on_all_spot():
    job = make_job(workload=12.0, deadline_slots=8, throughput=Amdahl(parallel=0.8), must_finish=True)
    window = make_window(0.5, 8, slots=8)
    sized = replay(Sizing(), job, window)
    assert sized.on_time
    assert sized.cost_usd == 0.5 * replay(OnDemandOnly(), job, window).cost_usd
