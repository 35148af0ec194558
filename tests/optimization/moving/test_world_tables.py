"""Spot lost within slots in the tables of several markets: the share of its work that it does (M11.6)."""

from __future__ import annotations

import numpy as np
import pytest
from make import make_job, make_multi_job, make_record, make_window
from moving_markets import case_of

from slackwater.optimization.job.definition import InstanceTimes
from slackwater.optimization.market.window import Past
from slackwater.optimization.moving.policies import MeanField
from slackwater.optimization.moving.world_tables import STANDS_WHOLE, share_that_stands
from slackwater.optimization.world.replay import Launcher, replay_in_world

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
