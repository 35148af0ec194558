"""The world of M12: the reference cases, and properties on random markets."""

import json
from pathlib import Path

import numpy as np
import pytest

from slackwater.optimization.window.plan import Allocation
from slackwater.optimization.world.simulation import Readings, WorldRun, WorldTerms, simulate
from slackwater.warehouse.errors import JobError

CASES = json.loads((Path(__file__).parents[2] / "golden" / "world.json").read_text(encoding="utf-8"))["cases"]


def terms_of(job):
    rates = [0.0] * job["n_min"] + [_rate(job, n) for n in range(job["n_min"], job["n_max"] + 1)]
    return WorldTerms(
        rates=tuple(rates),
        workload=job["work"],
        on_demand_usd=job["on_demand_usd"],
        boot=job["boot_s"],
        restart=job["restart_s"],
        checkpoint=job["checkpoint_s"],
    )


def _rate(job, n):
    if job["form"] == "linear":
        return job["alpha"] * n
    return job["alpha"] / ((1 - job["parallel"]) + job["parallel"] / n)


def readings_of(rows):
    times, available, price = (np.array(column) for column in zip(*rows, strict=True))
    return Readings(times=times, available=available, price=price)


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_reference_case(case):
    decisions = [(at, Allocation(on_demand, spot)) for at, on_demand, spot in case["decisions"]]
    terms, readings = terms_of(case["job"]), readings_of(case["readings"])
    run = simulate(terms, readings, decisions, case["until_s"])
    expected = case["result"]
    on_demand, spot = run.paid
    on_demand_s, spot_s = run.instance_seconds
    assert (run.lost_instances, run.restarts) == (expected["lost_instances"], expected["restarts"])
    assert run.finish == pytest.approx(expected["finish_s"], abs=1e-6) or run.finish is expected["finish_s"]
    found = [on_demand, spot, on_demand_s, spot_s, run.work, run.lost_work]
    names = (
        "paid_on_demand_usd",
        "paid_spot_usd",
        "on_demand_instance_s",
        "spot_instance_s",
        "work",
        "lost_work",
    )
    assert found == pytest.approx([expected[name] for name in names], abs=1e-6)
    run = WorldRun(terms, readings)
    for (at, target), (second, work) in zip(decisions, expected["work_at_decisions"], strict=False):
        run.advance(at)
        assert (at, run.work) == (second, pytest.approx(work, abs=1e-6))
        run.decide(target)


def markets(rng):
    """Return the terms and readings of a random small job."""
    n_max = int(rng.integers(1, 6))
    terms = WorldTerms(
        rates=(0.0, *np.sort(rng.uniform(0.5, 4.0, n_max))),
        workload=float(rng.uniform(1.0, 12.0)),
        on_demand_usd=4.0,
        boot=float(rng.choice([0.0, 120.0])),
        restart=float(rng.choice([0.0, 240.0, 900.0])),
        checkpoint=float(rng.choice([0.0, 600.0])),
        notice_saves=bool(rng.integers(2)),
        on_demand_wait=float(rng.choice([0.0, 300.0])),
    )
    times = np.cumsum(rng.integers(60, 900, 60)).astype(float)
    available = rng.integers(0, n_max + 2, 60)
    return terms, Readings(times=times, available=available, price=rng.uniform(0.5, 3.0, 60))


@pytest.mark.parametrize("seed", range(40))
def test_where_time_is_cut_does_not_matter(seed):
    """Advancing in many small steps gives the same run as advancing from decision to decision."""
    rng = np.random.default_rng(seed)
    terms, readings = markets(rng)
    whole, cut = WorldRun(terms, readings), WorldRun(terms, readings)
    for at in range(0, 36_000, 1800):
        spot = int(rng.integers(0, terms.n_max + 1))
        target = Allocation(int(rng.integers(0, terms.n_max + 1 - spot)), spot)
        whole.advance(at)
        for second in np.sort(rng.uniform(at - 1800, at, 5)):
            cut.advance(max(second, cut.now))
        cut.advance(at)
        assert cut.held == whole.held
        assert (cut.work, *cut.paid) == pytest.approx((whole.work, *whole.paid), abs=1e-9)
        whole.decide(target)
        cut.decide(target)
    assert (whole.restarts, whole.lost_instances) == (cut.restarts, cut.lost_instances)
    assert whole.finish == pytest.approx(cut.finish)


def test_on_demand_that_must_be_waited_for_is_paid_from_its_grant():
    terms = WorldTerms(
        rates=(0.0, 1.0),
        workload=5.0,
        on_demand_usd=3.6,
        boot=100.0,
        restart=50.0,
        checkpoint=0.0,
        on_demand_wait=200.0,
    )
    none = Readings(times=np.array([0.0]), available=np.array([0]), price=np.array([1.0]))
    run = simulate(terms, none, [(0.0, Allocation(1, 0))], 3950.0)
    assert run.paid == pytest.approx((3.75, 0.0))
    assert run.work == pytest.approx(1.0)


def test_a_notice_that_is_long_enough_saves_the_work():
    base = {
        "rates": (0.0, 1.0),
        "workload": 5.0,
        "on_demand_usd": 3.6,
        "boot": 0.0,
        "restart": 0.0,
        "checkpoint": 1e6,
    }
    lost = Readings(times=np.array([0.0, 1800.0]), available=np.array([1, 0]), price=np.array([1.0, 1.0]))
    works = [
        simulate(WorldTerms(**base, notice_saves=saves), lost, [(0.0, Allocation(0, 1))], 3600.0).work
        for saves in (False, True)
    ]
    assert works == [0.0, 0.5]


@pytest.mark.parametrize("target", [Allocation(1, 1), Allocation(0, 2)])
def test_a_target_beyond_n_max_is_refused(target):
    terms, readings = terms_of(CASES[0]["job"] | {"n_max": 1}), readings_of(CASES[0]["readings"])
    with pytest.raises(JobError, match="0 to 1 instances"):
        WorldRun(terms, readings).decide(target)
