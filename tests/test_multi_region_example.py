"""The adapter for multi-region simulators, on a small simulator of this test."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from multi_region_strategy import Action, MultiRegionStrategy, Observation

ON_DEMAND = {"east": 3.0, "west": 3.2, "north": 2.9}


class Simulator:
    """One instance over regions; a launch costs ``restart`` hours and a move egress; lost spot is lost at once."""

    def __init__(self, up, price, *, hours=0.5, restart=0.1, egress=1.0):
        self.up, self.price, self.hours, self.restart, self.egress = up, price, hours, restart, egress
        self.asked = []

    def run(self, strategy, work, home=None):
        regions = list(ON_DEMAND)
        done, usd, region, holding = 0.0, 0.0, home, None
        for step in range(self.up.shape[1]):
            if done >= work - 1e-9:
                return done, usd, step
            if holding == "spot" and not self.up[regions.index(region), step]:
                holding = None
            known = {} if region is None else {region: bool(self.up[regions.index(region), step])}
            before = (region, holding)
            for _ in range(12):
                spot = {name: float(self.price[m, step]) for m, name in enumerate(regions)}
                action = strategy.act(
                    Observation(
                        step=step,
                        done_hours=done,
                        region=region,
                        holding=holding,
                        spot_usd=spot,
                        available=dict(known),
                    )
                )
                self.asked.append((step, action))
                there = action.region is not None and bool(self.up[regions.index(action.region), step])
                if action.kind == "probe" or (action.kind == "try" and not there):
                    known[action.region] = there
                    continue
                break
            else:
                raise AssertionError("asked for ever")
            if action.kind == "terminate":
                holding = None
            elif action.kind in ("try", "on_demand"):
                usd += self.egress if region not in (None, action.region) else 0.0
                region, holding = action.region, "spot" if action.kind == "try" else "on_demand"
            if holding:
                m = regions.index(region)
                usd += self.hours * (self.price[m, step] if holding == "spot" else ON_DEMAND[region])
                done += self.hours - (self.restart if (region, holding) != before else 0.0)
        return done, usd, self.up.shape[1]


def world(seed, steps=40, stay=0.85, before=120):
    rng = np.random.default_rng(seed)
    up = np.zeros((3, before + steps), bool)
    for m in range(3):
        now = rng.random() < 0.5
        for t in range(before + steps):
            now = now if rng.random() < stay else rng.random() < 0.5
            up[m, t] = now
    price = np.repeat(rng.uniform(0.6, 1.2, (3, 1)), before + steps, axis=1)
    past = {name: (price[m, :before], up[m, :before].astype(float)) for m, name in enumerate(ON_DEMAND)}
    return up[:, before:], price[:, before:], past


def strategy_of(past, home=None, probes=1, work=8.0):
    return MultiRegionStrategy(
        ON_DEMAND,
        work_hours=work,
        deadline_hours=20.0,
        restart_hours=0.1,
        egress_usd=1.0,
        home=home,
        probes=probes,
        history=past,
    )


@pytest.mark.parametrize(("home", "probes"), [(None, 1), ("east", 1), ("east", 0)])
def test_it_is_on_time_and_cheaper_than_on_demand(home, probes):
    paid = []
    for seed in range(4):
        up, price, past = world(seed)
        done, usd, steps = Simulator(up, price).run(strategy_of(past, home, probes), 8.0, home)
        assert done >= 8.0 - 1e-9
        assert steps <= 40
        paid.append(usd)
    assert np.mean(paid) < 0.6 * 8.0 * min(ON_DEMAND.values())


def test_without_any_spot_it_runs_on_demand_in_time():
    up, price, past = world(1)
    done, _, _ = Simulator(up & False, price).run(strategy_of(past, "east"), 8.0, "east")
    assert done >= 8.0 - 1e-9


def test_what_it_is_not_told_does_not_matter():
    up, price, past = world(2)
    one, two = Simulator(up, price), None
    one.run(strategy_of(past, "east", probes=0), 8.0, "east")
    tried = {(step, action.region) for step, action in one.asked if action.kind in ("try", "probe")}
    other = up.copy()
    for m, name in enumerate(ON_DEMAND):
        for step in range(up.shape[1]):
            if (step, name) not in tried and name != "east":
                other[m, step] = not other[m, step]
    # Until the first step spent elsewhere, nothing that the policy knew has changed.
    first = min(
        (step for step, action in one.asked if action.region not in (None, "east")), default=up.shape[1]
    )
    two = Simulator(other, price)
    two.run(strategy_of(past, "east", probes=0), 8.0, "east")
    assert [a for a in one.asked if a[0] < first] == [a for a in two.asked if a[0] < first]


def test_it_probes_no_more_often_than_it_may():
    up, price, past = world(3)
    simulator = Simulator(up, price)
    simulator.run(strategy_of(past, probes=2), 8.0)
    for step in {step for step, _ in simulator.asked}:
        assert sum(action.kind == "probe" for at, action in simulator.asked if at == step) <= 2


def test_a_finished_job_terminates():
    _, price, past = world(4)
    spot = {name: float(price[m, 0]) for m, name in enumerate(ON_DEMAND)}
    done = Observation(
        step=3, done_hours=8.0, region="east", holding="spot", spot_usd=spot, available={"east": True}
    )
    assert strategy_of(past).act(done) == Action(kind="terminate")
