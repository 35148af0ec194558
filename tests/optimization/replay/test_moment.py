"""Decisions within a slot, after a loss of spot (M12.15)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from make import make_history, make_job

from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.moving.definition import placement
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.decision import Effort, Moment, Revision, decide, live_job
from slackwater.optimization.replay.guard import Guard
from slackwater.optimization.world.readings import with_losses
from slackwater.optimization.world.simulation import Readings

EFFORT = Effort(solver_seconds=1.0, risk_paths=20, seed=3)
SLOTS = 8


def running(rng, *, load):
    """Return a job on spot in its third slot, and the spot instances of its decisions."""
    counts = np.full(12, 4.0)
    history = make_history(price=0.3, available=counts, slots=12)
    job = make_job(workload=load * SLOTS, deadline_slots=SLOTS, n_max=4, must_finish=True, value=1e6)
    start = history.slots[-3]
    spot = int(rng.integers(1, 5))
    decided = {start + k * history.step: Allocation(0, spot) for k in range(3)}
    return live_job(job, start, history, decided=decided), spot


@pytest.mark.parametrize("policy", ["Stochastic", "UP"])
def test_the_rest_of_a_slot_is_decided_under_the_guard_without_the_lost_spot(policy):
    rng = np.random.default_rng(4)
    for load in (1.0, 3.0):
        live, spot = running(rng, load=load)
        seconds, left = float(rng.uniform(60, 1700)), int(rng.integers(0, spot))
        moment = Moment(seconds=seconds, held=Allocation(0, left), lost=(seconds - 30.0, 0, left))
        after = live.at_moment(moment, [])
        decision = decide(after, policy_named(policy), EFFORT)
        view = after.view(after.progress(), after.slot)
        assert view.views[0].available == left
        assert view.views[0].elapsed_hours == pytest.approx(seconds / 3600)
        assert decision.allocation.spot <= left
        guard = Guard.of(view, after.reached().run)
        if decision.guarded:
            assert guard.holds(placement(0, decision.allocation))
        assert decision.expected.late_probability <= (0.0 if decision.guarded else 1.0)


def test_a_loss_takes_the_work_since_the_checkpoint_and_the_targets_since_are_followed():
    live, spot = running(np.random.default_rng(1), load=2.0)
    lost = (600.0, 0, 0)
    idle = live.at_moment(Moment(seconds=1500.0, held=Allocation(0, 0), lost=lost), [])
    kept = live.at_moment(
        Moment(seconds=1500.0, held=Allocation(spot, 0), lost=lost),
        [Revision(seconds=600.0, target=placement(0, Allocation(spot, 0)))],
    )
    before = live.progress().done
    assert before <= idle.progress().done < kept.progress().done
    assert kept.reached().run.held == Allocation(spot, 0)


def test_reported_work_within_the_slot_takes_the_place_of_the_computed():
    live, _ = running(np.random.default_rng(1), load=2.0)
    moment = Moment(seconds=900.0, held=Allocation(0, 0), lost=(890.0, 0, 0), work=(880.0, 1.25))
    assert live.at_moment(moment, []).reached().run.work == pytest.approx(1.25, abs=0.01)
    again = live.at_moment(replace(moment, lost=(870.0, 0, 0)), [])
    assert again.reached().run.work == pytest.approx(1.25)


def test_the_state_of_a_later_slot_follows_a_revision():
    live, spot = running(np.random.default_rng(1), load=2.0)
    revision = Revision(seconds=600.0, target=placement(0, Allocation(spot, 0)), lost=(600.0, 0, 0))
    revised = replace(live, revised={live.slot - 1: (revision,)})
    lost = replace(live, revised={live.slot - 1: (replace(revision, target=placement(0, Allocation(0, 0))),)})
    assert lost.progress().done < revised.progress().done
    assert revised.progress().cost_usd > live.progress().cost_usd


def test_losses_are_readings_at_their_times():
    readings = Readings(
        times=np.array([0.0, 600.0, 1200.0]), available=np.array([4, 4, 2]), price=np.array([0.1, 0.2, 0.3])
    )
    after = with_losses(readings, [(600.0, 1), (900.0, 0)])
    assert after.times.tolist() == [0.0, 600.0, 900.0, 1200.0]
    assert after.available.tolist() == [4, 1, 0, 2]
    assert after.price.tolist() == [0.1, 0.2, 0.2, 0.3]
