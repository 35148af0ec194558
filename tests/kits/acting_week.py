"""Simulated clouds of a warehouse, and passes of `act` on it."""

from __future__ import annotations

from command_kit import call

from slackwater.flows.acting.rehearsal import simulated_cloud
from slackwater.flows.acting.warehouse import ActingWarehouse


def simulated(db, settings):
    """Return a warehouse as it is acted on, and its simulated cloud."""
    world = ActingWarehouse(db, settings)
    return world, simulated_cloud(db, world)


def act_at(db, at, *more):
    """Return the answer of a pass of `slackwater act` at a time, with the simulated driver."""
    return call("act", "--driver", "simulated", "--db", db, "--at", at.isoformat(), *more, "--json").value
