"""Fixed bounds on a job's utility that no decisions exceed (M5.2)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from make import make_job, make_window

from slackwater.optimization import Job
from slackwater.optimization.job.definition import Allocation, Amdahl, Linear
from slackwater.optimization.policies.contract import View
from slackwater.optimization.replay.run import replay
from slackwater.optimization.selection.contract import utility_bounds
from slackwater.studies.experiments.selection import attainable_bounds


@dataclass(frozen=True)
class Written:
    """Policy with predetermined decisions."""

    decisions: tuple[Allocation, ...]
    name: str = "Written"

    def start(self, job: Job) -> None:
        return None

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        return self.decisions[view.slot], None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        return "written down"


@given(
    data=st.data(),
    workload=st.floats(0.5, 40.0),
    mu_up=st.sampled_from([1.0, 0.6, 0.2, 0.0, -0.7]),
    mu_down=st.sampled_from([1.0, 0.9, 0.5]),
    value=st.floats(0.0, 60.0),
)
@settings(max_examples=100, deadline=None)
def test_no_decisions_leave_the_attainable_bounds(data, workload, mu_up, mu_down, value):
    """Holds for all decisions as long as no price exceeds on-demand."""
    slots = data.draw(st.integers(1, 7))
    throughput = data.draw(st.sampled_from([Linear(), Linear(alpha=1.0, beta=2.0), Amdahl(parallel=0.8)]))
    job = make_job(
        workload=workload,
        deadline_slots=slots,
        n_min=data.draw(st.integers(1, 2)),
        n_max=4,
        throughput=throughput,
        mu_up=mu_up,
        mu_down=mu_down,
        value=value,
    )
    numbers = st.sampled_from([0, *range(job.n_min, job.n_max + 1)])
    sizes = data.draw(st.lists(numbers, min_size=slots, max_size=slots))
    spots = [data.draw(st.integers(0, n)) for n in sizes]
    market = make_window(
        data.draw(st.lists(st.floats(0.0, 2.0), min_size=slots, max_size=slots)),
        [4] * slots,
        on_demand_usd=2.0,
        slot_hours=0.5,
    )
    decided = tuple(Allocation(n - s, s) for n, s in zip(sizes, spots, strict=True))
    utility = replay(Written(decided), job, market).utility_usd
    low, high = attainable_bounds(job, on_demand_usd=2.0, slot_hours=0.5)
    assert low - 1e-9 <= utility <= high + 1e-9
    wide_low, wide_high = utility_bounds(job, on_demand_usd=2.0, slot_hours=0.5)
    assert wide_low <= low
    assert wide_high == high


def test_attainable_bounds_of_a_job():
    job = make_job(workload=9, n_max=4, value=60, mu_up=0.9, mu_down=0.95)
    low, high = attainable_bounds(job, on_demand_usd=2.0, slot_hours=0.5)
    assert (low, high) == (pytest.approx(-(2.0 * 9 / 0.9 + 4.0)), 60)
    owing = dataclasses.replace(job, mu_up=-0.5)
    assert attainable_bounds(owing, on_demand_usd=2.0, slot_hours=0.5)[0] == -40.0
