"""The adapter for multi-region simulators, on a small simulator of this test."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from multi_region_strategy import Action, MultiRegionStrategy, Observation

ON_DEMAND = {"east": 3.0, "west": 3.2, "north": 2.9}


class Simulator:
    """One instance over regions; a launch costs ``restart`` hours, which later steps continue, and a move egress.

    A step has as many parts as ``up`` has columns per step; spot that is gone in a part is lost there. Without
    ``shows_own`` an idle job does not see the availability of its own region.
    """

    def __init__(self, up, price, *, hours=0.5, restart=0.1, egress=1.0, shows_own=True, on_demand=ON_DEMAND):
        self.up, self.price, self.hours, self.restart, self.egress = up, price, hours, restart, egress
        self.parts, self.shows_own, self.on_demand = up.shape[1] // price.shape[1], shows_own, on_demand
        self.asked, self.ran = [], []

    def run(self, strategy, work, home=None):
        regions = list(self.on_demand)
        done, usd, region, holding, pending = 0.0, 0.0, home, None, 0.0
        for step in range(self.price.shape[1]):
            if done >= work - 1e-9:
                return done, usd, step
            up = self.up[:, step * self.parts : (step + 1) * self.parts]
            if holding == "spot" and not up[regions.index(region), 0]:
                holding = None
            known = {}
            if region is not None and (self.shows_own or holding == "spot"):
                known[region] = bool(up[regions.index(region), 0])
            before = (region, holding)
            for _ in range(4 * len(regions)):
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
                there = action.region is not None and bool(up[regions.index(action.region), 0])
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
            pending = self.restart if (region, holding) != before else pending
            self.ran.append(holding)
            for part in range(self.parts):
                if holding == "spot" and not up[regions.index(region), part]:
                    holding = None
                if holding and done < work - 1e-9:
                    m, hours = regions.index(region), self.hours / self.parts
                    usd += hours * (self.price[m, step] if holding == "spot" else self.on_demand[region])
                    done += max(0.0, hours - pending)
                    pending = max(0.0, pending - hours)
        return done, usd, self.price.shape[1]


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


FIVE = {"a": 3.0, "b": 3.2, "c": 2.9, "d": 3.1, "e": 3.05}


def rough_world(seed, steps=24, parts=6):
    """Return spot of five regions that comes and goes within steps, and prices, without a past."""
    rng = np.random.default_rng(seed)
    up = np.zeros((5, steps * parts), bool)
    share, stay = rng.uniform(0.1, 0.9, 5), rng.uniform(0.85, 0.98, 5)
    for m in range(5):
        now = rng.random() < share[m]
        for t in range(steps * parts):
            now = now if rng.random() < stay[m] else rng.random() < share[m]
            up[m, t] = now
    return up, np.repeat(rng.uniform(0.6, 1.4, (5, 1)), steps, axis=1)


class Greedy:
    """Cheapest spot there is, kept until it is lost; on-demand when it must, with ``pace`` also behind uniform progress (UP).

    Without ``free_tries`` a step has one try, in the regions in turn.
    """

    def __init__(self, work, steps, hours, restart, *, pace=False, free_tries=True):
        self.work, self.steps, self.hours, self.restart = work, steps, hours, restart
        self.pace, self.free_tries = pace, free_tries

    def act(self, seen):
        left = (self.steps - seen.step) * self.hours
        rest = self.work - seen.done_hours + self.restart
        forced = left - self.hours < rest - 1e-9
        if seen.holding == "spot" and not forced:
            return Action(kind="stay", region=seen.region)
        unseen = [name for name in seen.spot_usd if name not in seen.available]
        if not self.free_tries:
            names = list(seen.spot_usd)
            unseen = [] if seen.available else [names[seen.step % len(names)]]
        if unseen and not forced:
            return Action(kind="try", region=min(unseen, key=seen.spot_usd.get))
        behind = self.pace and seen.done_hours < self.work * seen.step / self.steps
        if forced or seen.holding == "on_demand" or behind:
            place = seen.region or min(FIVE, key=FIVE.get)
            return Action(kind="stay" if seen.holding == "on_demand" else "on_demand", region=place)
        return Action(kind="stay", region=seen.region)


def rough_simulator(seed, restart):
    up, price = rough_world(seed)
    return Simulator(up, price, restart=restart, egress=0.05, shows_own=False, on_demand=FIVE)


def cold(restart, work, **options):
    return MultiRegionStrategy(
        FIVE, work_hours=work, deadline_hours=12.0, restart_hours=restart, egress_usd=0.05, **options
    )


def check_variants(worlds, *, within, restart, free_tries, work):
    paid, greedy, pace = [], [], []
    for seed in range(worlds):
        strategy = cold(restart, work, probes=0, free_tries=free_tries)
        done, usd, _ = rough_simulator(seed, restart).run(strategy, work)
        assert done >= work - 1e-9, f"world {seed} is late"
        paid.append(usd)
        for rule, costs in ((False, greedy), (True, pace)):
            baseline = Greedy(work, 24, 0.5, restart, pace=rule, free_tries=free_tries)
            costs.append(rough_simulator(seed, restart).run(baseline, work)[1])
    assert np.mean(paid) <= within * min(np.mean(greedy), np.mean(pace))


@pytest.mark.parametrize("restart", [0.1, 0.75])
def test_five_cold_regions_with_losses_at_any_time(restart):
    check_variants(20, within=1.05, restart=restart, free_tries=True, work=6.0)


@pytest.mark.slow
@pytest.mark.parametrize("restart", [0.1, 0.75])
@pytest.mark.parametrize("free_tries", [True, False])
@pytest.mark.parametrize("work", [6.0, 9.0])
def test_eight_variants_of_five_cold_regions(restart, free_tries, work):
    """Loose and tight jobs of 12 hours, short restarts and restarts longer than a step, with one try a step and with all."""
    check_variants(200, within=1.0, restart=restart, free_tries=free_tries, work=work)


def test_an_idle_job_looks_in_its_own_region_and_takes_the_spot_there():
    price = np.tile(np.array([[0.8], [2.5], [2.5], [2.5], [2.5]]), (1, 24))
    up = np.zeros((5, 24 * 6), bool)
    up[0, 6:] = True  # free at home from the second step on
    simulator = Simulator(up, price, shows_own=False, on_demand=FIVE)
    _, usd, _ = simulator.run(cold(0.1, 6.0, probes=0), 6.0, "a")
    assert simulator.ran[:2] == [None, "spot"]
    assert "on_demand" not in simulator.ran
    assert usd == pytest.approx(0.8 * 74 / 12)  # 6.1 hours, in parts of 5 minutes


@pytest.mark.parametrize(("work", "restart", "usd"), [(8.0, 0.0, 0.9), (8.0, 0.1, 0.4), (12.0, 0.5, 0.9)])
@pytest.mark.parametrize("probes", [0, 1])
def test_spot_in_hand_wins_a_near_tie_with_waiting(work, restart, usd, probes):
    on_demand = dict.fromkeys(("a", "b", "c"), 3.0)
    up, price = np.ones((3, 83), bool), np.full((3, 83), usd)
    simulator = Simulator(up, price, restart=restart, egress=0.0, shows_own=False, on_demand=on_demand)
    strategy = MultiRegionStrategy(
        on_demand, work_hours=work, deadline_hours=41.5, restart_hours=restart, probes=probes
    )
    _, paid, _ = simulator.run(strategy, work)
    assert simulator.ran[0] == "spot"
    assert paid <= usd * (work + restart + 0.5)


@pytest.mark.parametrize("home", list(FIVE))
def test_after_a_loss_the_only_try_of_a_step_goes_to_another_region(home):
    strategy = cold(0.1, 6.0, probes=0, free_tries=False)
    usd = {region: 0.8 if region == home else 0.81 for region in FIVE}
    begun = Observation(step=0, done_hours=0.0, region=None, holding=None, spot_usd=usd)
    assert strategy.act(begun) == Action(kind="try", region=home)
    lost = Observation(step=1, done_hours=0.2, region=home, holding=None, spot_usd=usd)
    after = strategy.act(lost)
    assert (after.kind, after.region == home) == ("try", False)


def test_a_failed_try_is_followed_by_others_only_where_trying_is_free():
    for free, most in ((True, 5), (False, 1)):
        price = np.full((5, 24), 0.8)
        simulator = Simulator(np.zeros((5, 24 * 6), bool), price, shows_own=False, on_demand=FIVE)
        simulator.run(cold(0.1, 9.0, probes=0, free_tries=free), 9.0, "a")
        assert sum(step == 0 and action.kind == "try" for step, action in simulator.asked) == most
