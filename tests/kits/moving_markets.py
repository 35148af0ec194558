"""Small synthetic markets and multi-market jobs on them."""

import numpy as np
from make import make_job, make_record, make_window

from slackwater.optimization.moving.sight import Grounds
from slackwater.optimization.replay.run import Case
from slackwater.optimization.world.audit import audit_in_world
from slackwater.optimization.world.readings import market_readings
from slackwater.optimization.world.replay import Launcher, WorldCase, replay_in_world
from slackwater.studies.world_bound import bound_in_world

ON_DEMAND = (3.0, 3.2, 2.8)


def a_job(d=8, n_max=3, load=0.5, mu=0.9, n_min=1, **other):
    workload = load * d * n_max
    return make_job(
        workload=workload,
        deadline_slots=d,
        n_min=n_min,
        n_max=n_max,
        mu_up=mu,
        mu_down=0.95,
        value=1.6 * workload * 3.2,
        **other,
    )


def random_markets(seed, d, n_max, markets=3, before=60, stay=0.8):
    """Return windows and records of markets with persistent counts; the records' peers are the other markets."""
    rng = np.random.default_rng(seed)
    counts = np.zeros((markets, before + d))
    for m in range(markets):
        now = int(rng.integers(n_max + 1))
        for t in range(before + d):
            now = now if rng.random() < stay else int(rng.integers(n_max + 1))
            counts[m, t] = now
    prices = np.repeat(rng.uniform(0.5, 1.5, (markets, 1)), before + d, axis=1)
    return made(prices, counts, before)


def made(prices, counts, before):
    windows = [
        make_window(p[before:], c[before:], on_demand_usd=ON_DEMAND[m])
        for m, (p, c) in enumerate(zip(prices, counts, strict=True))
    ]
    records = [
        make_record(prices[m], counts[m], first=before, peers=np.delete(counts, m, axis=0))
        for m in range(len(counts))
    ]
    return windows, records


def case_of(job, windows, records=None, forecasts=None, within=None):
    """Return a multi-market job in the world, whose markets are read at slots and ``within`` them."""
    nothing = [None] * len(windows)
    return WorldCase(
        job=job,
        cases=tuple(
            Case(job=run, window=window, forecasts=issued, record=record)
            for run, window, issued, record in zip(
                job.runs, windows, forecasts or nothing, records or nothing, strict=True
            )
        ),
        readings=tuple(
            market_readings(window, inside) for window, inside in zip(windows, within or nothing, strict=True)
        ),
    )


def grounds(job, windows, records=None):
    """Return the observations of the markets of a job, slot by slot."""
    return Grounds(job, case_of(job, windows, records).cases)


def replayed(policy, job, windows, *, records=None, forecasts=None, within=None, **options):
    """Return the audited outcome of a policy in the world, decided at slots; it is no better than the bound."""
    case = case_of(job, windows, records, forecasts, within)
    (outcome,) = replay_in_world([policy], case, launcher=Launcher.SLOTS, **options)
    audit_in_world(case, outcome)
    assert outcome.utility_usd <= bound_in_world(case).utility_usd + 1e-6
    return outcome
