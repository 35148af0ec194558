"""Tables of several markets (M11.6): losses within slots, markets without on-demand, probes, and many paths at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_job, make_multi_job, make_record, make_window
from moving_markets import a_job, case_of, grounds, made, random_markets

from slackwater.optimization.job.definition import Allocation, InstanceTimes, Linear, Progress
from slackwater.optimization.job.markets import even_moving
from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.market.window import Past
from slackwater.optimization.moving.definition import MarketsJob
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.moving.world_tables import (
    STANDS_WHOLE,
    in_time_somewhere,
    share_that_stands,
    world_tables_in_force,
)
from slackwater.optimization.policies.contract import Running
from slackwater.optimization.replay.ahead import progress_of
from slackwater.optimization.replay.guard import Guard
from slackwater.optimization.world.paths import WorldPaths
from slackwater.optimization.world.replay import Launcher, replay_in_world
from slackwater.optimization.world.simulation import Readings, WorldRun
from slackwater.optimization.world.terms import world_markets
from slackwater.warehouse.history import OnDemandOrigin

NOT_SOLD = OnDemandOrigin(kind="not sold", words="test")
TIMES = InstanceTimes(boot=120.0, restart=240.0, checkpoint=600.0)
JOB = make_job(workload=12, deadline_slots=8, n_max=4, value=60, must_finish=True, times=TIMES)


def past(counts, within):
    counts = np.asarray(counts, dtype=float)
    return Past(price=np.ones(len(counts)), available=counts, peers=np.empty((0, len(counts))), within=within)


def share(counts, within, half_life=np.inf):
    return share_that_stands(JOB, past(counts, np.asarray(within, dtype=float)), 1.0, half_life)


def without_prior(found, slots):
    """Return the mean share of ``slots`` slots of equal weight."""
    return (found * (slots + STANDS_WHOLE) - STANDS_WHOLE) / slots


def test_spot_that_is_not_read_within_slots_or_stays_does_all_its_work():
    assert share_that_stands(JOB, None, 1.0, 24.0) == 1.0
    assert share_that_stands(JOB, past([4] * 9, None), 1.0, 24.0) == 1.0
    assert share([4] * 9, np.empty((9, 0))) == 1.0
    assert share([4] * 9, np.full((9, 2), 4)) == 1.0
    assert share([4] * 9, np.full((9, 2), np.nan)) == 1.0
    assert share([0] * 9, np.full((9, 2), 4)) == 1.0  # nothing is held at the starts
    assert share([9] * 9, np.full((9, 2), 5)) == 1.0  # more than the job takes is lost


@pytest.mark.parametrize(
    ("within", "stood"),
    [
        ([0, 0], 1 / 3),
        (
            [2, 2],
            (1 + 0.5 * (1 - 540 / 1200) + 0.5) / 3,
        ),  # half are lost, with half a checkpoint and a restart
        ([0, 4], (1 + (1 - 360 / 1200)) / 3),  # all start anew
        ([2, 4], (1 + 0.5 * (1 - 540 / 1200) + (1 - 240 / 1200)) / 3),
    ],
)
def test_instances_that_are_gone_and_restarts_are_lost(within, stood):
    slots = 6
    found = share([4] * (slots + 1), np.tile(within, (slots + 1, 1)))
    assert without_prior(found, slots) == pytest.approx(stood)


@pytest.mark.parametrize(
    ("within", "stood"),
    [
        ([2, 2], (1 + 0.5 * (1 - 780 / 1200) + 0.5) / 3),
        ([2, 4], (1 + 0.5 * (1 - 780 / 1200) + (1 - 960 / 1200)) / 3),
    ],
)
def test_a_restart_takes_the_time_of_the_group_that_is_left(monkeypatch, within, stood):
    monkeypatch.setattr(InstanceTimes, "restart_seconds", lambda times, n: times.restart * n)
    found = share([4] * 7, np.tile(within, (7, 1)))
    assert without_prior(found, 6) == pytest.approx(stood)


def test_old_readings_count_less_and_the_slot_of_the_view_has_none():
    within = np.full((49, 1), 4.0)
    within[:25] = 0.0
    assert share([4] * 49, within, 6.0) > share([4] * 49, within) > share([4] * 49, within[::-1], 6.0)
    record = make_record(np.ones(12), np.full(12, 4.0), first=4, within=np.arange(12.0).reshape(12, 1))
    assert record.until(2).within[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]


@pytest.mark.parametrize("is_read", [True, False])
def test_the_plan_leaves_a_cheap_market_that_loses_spot_within_slots(is_read):
    """Both markets have all instances at every start; the cheaper loses them soon after."""
    before, slots = 48, JOB.deadline_slots
    prices, counts = (0.5, 0.7), np.full(before + slots, 4.0)
    read = [np.zeros((before + slots, 2)), np.full((before + slots, 2), 4.0)]
    records = [
        make_record(np.full(before + slots, usd), counts, first=before, within=within if is_read else None)
        for usd, within in zip(prices, read, strict=True)
    ]
    windows = [make_window(np.full(slots, usd), counts[before:], on_demand_usd=2.0) for usd in prices]
    case = case_of(make_multi_job(JOB, 2, usd=0.01), windows, records, within=[own[before:] for own in read])
    (outcome,) = replay_in_world([MeanField()], case, launcher=Launcher.SLOTS)
    first = outcome.places[0]
    assert first == (1 if is_read else 0)
    assert outcome.on_time
    assert (outcome.on_demand_hours == 0.0) == is_read


# ---
# Markets without on-demand, and unobserved counts.


def tables_at(job, windows, records, progress=None, slot=0):
    """Return the view of a slot in the world, and the tables from there on."""
    view = grounds(job, windows, records).view(progress or job.begin(), slot)
    done = view.progress.done
    held = Running(held=Allocation(0, 0), pending_hours=0.0, saved=done, gap_hours=1.0, guarded=True)
    view = view.in_world(held, view.place)
    return view, world_tables_in_force(view, Forgetting(), whole=True)


@pytest.mark.parametrize("faster", [0, 1])
def test_a_market_without_on_demand_gives_spot_until_on_demand_elsewhere_must_start(faster):
    """No target there has on-demand, and from the line of the market that sells it on no target there is allowed."""
    own = replace(a_job(d=8, n_max=3, load=0.6, must_finish=True), times=TIMES)
    runs = [own, own]
    runs[faster] = replace(own, throughput=Linear(alpha=1.5))
    job = MarketsJob(runs=tuple(runs), moving=even_moving(2, taken=0.1, usd=0.0), home=1, sold=(True, False))
    windows, records = made(np.ones((2, 48)), np.full((2, 48), 3.0), 40)
    windows[1] = replace(windows[1], on_demand=NOT_SOLD, on_demand_usd=2.0 * own.value)
    allowed = set()
    for slot in range(8):
        for done in np.linspace(0.0, own.workload - 0.1, 12).tolist():
            view, tables = tables_at(job, windows, records, Progress(done=done, place=1), slot)
            found = tables.options(view)
            assert found.in_market(1)[0].on_demand == 0
            wish, _ = found.best()
            run = WorldRun(world_of(job, windows), [at_start(window) for window in windows], 3600.0 * slot)
            run.report(3600.0 * slot, work=done, market=1)
            guard = Guard.of(view, run)
            if in_time_somewhere(view):
                assert guard.allow(wish) == wish
                allowed.add(wish.market)
    assert allowed >= {0, 1}


def world_of(job, windows):
    return world_markets(
        job,
        on_demand_usd=[window.on_demand_usd for window in windows],
        slot_hours=1.0,
        sold=[window.on_demand.sold for window in windows],
    )


def at_start(window):
    return Readings(times=np.zeros(1), available=window.available[:1], price=window.price[:1])


def test_the_probe_goes_to_the_market_whose_count_can_change_the_decision():
    job = make_multi_job(a_job(d=8, n_max=3, load=0.6), home=0, usd=0.1)
    counts = np.zeros((3, 48))
    counts[1, ::2] = 3.0  # spot half of the time, never in the third
    windows, records = made(np.full((3, 48), 0.6), counts, 40)
    view, tables = tables_at(job, windows, records)
    assert tables.probe(view) is None
    unseen = [replace(own, available=0, observed=False) for own in view.views]
    assert tables.probe(replace(view, views=(view.views[0], *unseen[1:]))) == 1
    assert tables.probe(replace(view, views=(*view.views[:2], unseen[2]))) is None
    dear = make_multi_job(a_job(d=8, n_max=3, load=0.6), home=0, usd=50.0)
    view, tables = tables_at(dear, windows, records)
    assert tables.probe(replace(view, views=(view.views[0], *unseen[1:]))) is None


@pytest.mark.parametrize("sold", [(True, True, True), (True, False, True)])
def test_targets_on_many_paths_are_those_of_each_path(sold):
    slots, many, rng = 8, 10, np.random.default_rng(2)
    job = make_multi_job(replace(a_job(d=slots, n_max=3, load=0.6), times=TIMES), home=0, taken=0.1)
    job = MarketsJob(runs=job.runs, moving=job.moving, home=0, sold=sold)
    windows, records = random_markets(3, slots, 3)
    windows = [
        window if is_sold else replace(window, on_demand=NOT_SOLD, on_demand_usd=2.0 * job.job.value)
        for window, is_sold in zip(windows, sold, strict=True)
    ]
    _, tables = tables_at(job, windows, records)
    counts = rng.integers(0, 4, (many, 3, slots))
    prices = [window.price[0] for window in windows]
    times = 3600.0 * np.arange(slots)
    readings = np.stack(
        [np.broadcast_to(times, counts.shape), counts, np.broadcast_to(np.array(prices)[:, None], counts.shape)], axis=1
    )  # fmt: skip
    runs = [
        WorldRun(
            world_of(job, windows),
            [
                Readings(times=times, available=count, price=np.full(slots, usd))
                for count, usd in zip(path, prices, strict=True)
            ],
        )
        for path in counts
    ]
    paths = WorldPaths(WorldRun(world_of(job, windows), [at_start(window) for window in windows]), readings)
    compared = set()
    for slot in range(1, slots):
        paths.advance(times[slot])
        own = np.flatnonzero(paths.running)
        if not len(own):
            break
        known = tables.read_paths(np.tile(prices, (len(own), 1)), counts[own, :, slot])
        wished = tables.on_paths(slot, paths, own, known)
        for p in own.tolist():
            runs[p].advance(times[slot])
            there = [
                replace(window, available=count) for window, count in zip(windows, counts[p], strict=True)
            ]
            seen = grounds(job, there).view(progress_of(job, runs[p]), slot)
            wish = tables.options(Guard.of(seen, runs[p]).in_world()).best()[0]
            market = runs[p].market if wish.market is None else wish.market
            assert (market, wish.allocation.on_demand, wish.allocation.spot) == tuple(
                int(part[p]) for part in wished
            )
            compared.add(wish.market)
            runs[p].decide(wish.allocation, market)
        paths.decide(wished)
    assert len(compared) > 2
