"""Induction of M4.12 over several markets: of one market it is that of one market."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_multi_job
from moving_markets import a_job, grounds, random_markets

from slackwater.optimization.job.definition import InstanceTimes, times_of
from slackwater.optimization.market.belief import Forgetting
from slackwater.optimization.moving.world_tables import make_world_tables
from slackwater.optimization.policies.holding import make_held_tables


def test_a_single_market_has_the_tables_of_one_market():
    job = make_multi_job(a_job(d=8, n_max=3), 1)
    windows, records = random_markets(5, 8, 3, markets=1)
    (view,) = grounds(job, windows, records).view(job.begin(), 0).views
    belief = view.belief(Forgetting())
    terms = {"keep": 8, "guarded": True, "gap": 1.0}
    alone = make_held_tables(job.job, times_of(job.job, 1.0), belief, **terms)
    tables = make_world_tables(job, [belief], **terms)
    own = np.asarray(tables.plan.after[0])
    assert own.shape == alone.after.shape
    np.testing.assert_allclose(own, alone.after, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("minutes", "taken"), [(10.0, 0.0), (10.0, 1.0), (90.0, 0.3)])
def test_the_first_slot_is_the_same_whether_later_slots_are_stored(minutes, taken):
    """Of slots that are not stored only the values that the slot before reads are filled: restarts and moves add work left."""
    times = InstanceTimes(boot=600.0, restart=60.0 * minutes, checkpoint=600.0)
    job = make_multi_job(replace(a_job(d=8, n_max=3, load=0.5), times=times), 3, taken=taken)
    windows, records = random_markets(2, 8, 3)
    view = grounds(job, windows, records).view(job.begin(), 0)
    beliefs = [own.belief(Forgetting()) for own in view.views]
    whole, first = (make_world_tables(job, beliefs, keep=keep, guarded=True, gap=1.0) for keep in (8, 1))
    for own, other in zip(whole.plan.after, first.plan.after, strict=True):
        np.testing.assert_array_equal(np.asarray(other)[0], np.asarray(own)[0])
    np.testing.assert_array_equal(first.plan.alone[0], whole.plan.alone[0])


def test_markets_that_can_be_reached_add_value():
    job = make_multi_job(a_job(d=8, n_max=3, load=0.5), 3, usd=0.1)
    windows, records = random_markets(2, 8, 3)
    view = grounds(job, windows, records).view(job.begin(), 0)
    beliefs = [own.belief(Forgetting()) for own in view.views]
    terms = {"keep": 1, "guarded": True, "gap": 1.0}
    stays, moves = (make_world_tables(job, beliefs, draws=draws, **terms) for draws in (0, 6))
    for own, other in zip(stays.plan.after, moves.plan.after, strict=True):
        assert (np.asarray(other) >= np.asarray(own) - 1e-3).all()
        assert (np.asarray(other) > np.asarray(own) + 1e-3).any()
