"""The world of M12: the reference cases, and properties on random markets."""

import json
from pathlib import Path

import numpy as np
import pytest
from make import RestartByGroup, least_time, world_run

from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.world.simulation import Readings, WorldMarkets, WorldTerms
from slackwater.warehouse.errors import JobError


def simulate(terms, readings, decisions, until):
    run = world_run(terms, readings)
    for at, target in decisions:
        run.advance(at)
        run.decide(target)
    run.advance(until)
    return run


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
    run = world_run(terms, readings)
    for (at, target), (second, work) in zip(decisions, expected["work_at_decisions"], strict=False):
        run.advance(at)
        assert (at, run.work) == (second, pytest.approx(work, abs=1e-6))
        run.decide(target)


def market(rng, workload):
    """Return the terms and readings of a random small market."""
    n_max = int(rng.integers(1, 6))
    terms = WorldTerms(
        rates=(0.0, *np.sort(rng.uniform(0.5, 4.0, n_max))),
        workload=workload,
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


def places(rng):
    """Return a random small job in 1 to 3 markets, and their readings."""
    workload = float(rng.uniform(1.0, 12.0))
    terms, readings = zip(*(market(rng, workload) for _ in range(rng.integers(1, 4))), strict=True)
    usd = rng.uniform(0.0, 2.0, (len(terms), len(terms)))
    return WorldMarkets(terms=terms, transfer=float(rng.choice([0.0, 500.0])), move_usd=usd), readings


@pytest.mark.parametrize("seed", range(60))
def test_where_time_is_cut_does_not_matter(seed):
    """Advancing in many small steps gives the same run as advancing from decision to decision."""
    rng = np.random.default_rng(seed)
    job, readings = places(rng)
    whole, cut = world_run(job, readings), world_run(job, readings)
    for at in range(0, 36_000, 1800):
        to = int(rng.integers(len(job.terms)))
        spot = int(rng.integers(0, job.terms[to].n_max + 1))
        target = Allocation(int(rng.integers(0, job.terms[to].n_max + 1 - spot)), spot)
        whole.advance(at)
        for second in np.sort(rng.uniform(at - 1800, at, 5)):
            cut.advance(max(second, cut.now))
        cut.advance(at)
        assert (cut.held, cut.place) == (whole.held, whole.place)
        assert (cut.work, *cut.paid, cut.moving_usd) == pytest.approx(
            (whole.work, *whole.paid, whole.moving_usd), abs=1e-9
        )
        whole.decide(target, to)
        cut.decide(target, to)
    assert (whole.restarts, whole.lost_instances, whole.moves) == (
        cut.restarts,
        cut.lost_instances,
        cut.moves,
    )
    assert whole.finish == pytest.approx(cut.finish)


def far_apart(**changes):
    """Return a job with two equal markets: boot 100 s, restart 50 s, a transfer of 300 s for 2 USD, home in the first."""
    terms = WorldTerms(
        rates=(0.0, 1.0), workload=5.0, on_demand_usd=3.6, boot=100.0, restart=50.0, checkpoint=0.0
    )
    return WorldMarkets(
        **{"terms": (terms, terms), "transfer": 300.0, "move_usd": np.full((2, 2), 2.0), "home": 0} | changes
    )


NONE = Readings(times=np.array([0.0]), available=np.array([0]), price=np.array([1.0]))


def test_a_move_is_paid_when_the_first_group_forms_there_and_its_transfer_comes_before_the_restart():
    run = world_run(far_apart(), (NONE, NONE))
    run.decide(Allocation(1, 0), 1)
    run.advance(99.0)
    assert (run.moving_usd, run.place, run.market) == (0.0, 0, 1)
    run.advance(100.0)
    assert (run.moving_usd, run.place, run.moves, run.works_at) == (2.0, 1, 1, 450.0)
    run.advance(4050.0)
    assert run.work == pytest.approx(1.0)
    assert run.paid_usd == pytest.approx(4.05 + 2.0)


@pytest.mark.parametrize(("decided", "usd"), [(0.0, 1.0), (499.0, 1.0), (500.0, 4.0), (900.0, 4.0)])
def test_a_move_costs_what_its_slot_states_and_the_last_slot_stands_for_later_ones(decided, usd):
    by_slot = np.array([np.full((2, 2), 1.0), np.full((2, 2), 4.0)])
    run = world_run(far_apart(move_usd=by_slot, slot_seconds=600.0), (NONE, NONE))
    run.advance(decided)
    run.decide(Allocation(1, 0), 1)  # its group forms after a boot of 100 s
    run.advance(decided + 100.0)
    assert run.moving_usd == usd


def test_the_restart_is_that_of_the_group_that_forms():
    terms = RestartByGroup(
        rates=(0.0, 1.0, 2.0, 3.0), workload=50.0, on_demand_usd=1.0, boot=100.0, restart=50.0, checkpoint=0.0
    )
    counts = Readings(times=np.array([0.0, 400.0]), available=np.array([2, 0]), price=np.ones(2))
    run = world_run(terms, counts)
    run.decide(Allocation(1, 2))
    assert run.pending == 250.0
    run.advance(100.0)
    assert run.works_at == 250.0
    run.advance(400.0)
    assert run.works_at == 450.0
    assert least_time(terms) == 250.0 + 50.0 / 3.0 * 3600.0


def test_instances_end_when_the_move_is_decided_and_their_work_is_saved():
    run = world_run(far_apart(), (NONE, NONE))
    run.decide(Allocation(1, 0), 0)
    run.advance(1950.0)
    run.decide(Allocation(1, 0), 1)
    run.advance(2050.0)
    assert run.work == pytest.approx(0.5)
    assert run.paid == pytest.approx(((1950.0 + 100.0) / 1000.0, 0.0))


@pytest.mark.parametrize(
    ("home", "target", "back"),
    [(0, Allocation(0, 1), False), (0, Allocation(1, 0), True), (None, Allocation(1, 0), False)],
    ids=["no spot there", "back before it boots", "no home"],
)
def test_what_is_no_move(home, target, back):
    run = world_run(far_apart(home=home), (NONE, NONE))
    run.decide(target, 1)
    run.advance(50.0)
    if back:
        run.decide(target, 0)
    run.advance(5000.0)
    assert (run.moves, run.moving_usd) == (0, 0.0)
    assert run.work == pytest.approx(
        0.0 if target.spot else (5000.0 - 150.0 - (50.0 if back else 0.0)) / 3600.0
    )


def test_a_checkpoint_under_way_arrives_before_it_goes_on():
    run = world_run(far_apart(), (NONE, NONE))
    run.decide(Allocation(1, 0), 1)
    run.advance(150.0)
    run.decide(Allocation(1, 0), 0)
    run.advance(250.0)
    assert (run.moves, run.moving_usd, run.works_at) == (2, 4.0, 400.0 + 300.0 + 50.0)


def test_availability_and_price_are_those_of_the_market_of_the_instances():
    cheap = Readings(times=np.array([10.0, 20.0]), available=np.array([3, 1]), price=np.array([0.5, 0.7]))
    run = world_run(far_apart(), (NONE, cheap))
    run.advance(15.0)
    assert (run.reading_of(0), run.reading_of(1), run.available) == ((0, 1.0), (3, 0.5), 0)
    run.decide(Allocation(0, 1), 1)
    assert (run.available, run.price, run.held) == (3, 0.5, Allocation(0, 1))
    run.advance(25.0)
    assert (run.available, run.price) == (1, 0.7)


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
        world_run(terms, readings).decide(target)
