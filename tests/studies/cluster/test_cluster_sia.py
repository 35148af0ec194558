"""Sia's program and scheduler (M9.5): equal to enumeration and to the integer program, the published constants, learning."""

import itertools

import numpy as np
import pytest

from slackwater.optimization.window.plan import PlanStatus
from slackwater.optimization.window.solver import Limits, solve
from slackwater.studies.cluster.schedulers import (
    Choice,
    Sia,
    believed_rate,
    choice_model,
    choose,
    chosen_options,
    cost_of,
    options_of,
)
from slackwater.studies.cluster.simulation import Active, Attempt, Cluster, ClusterJob, simulate
from slackwater.warehouse.errors import SettingsError


def random_choices(rng, jobs, options=4):
    return [
        Choice(
            nothing=float(rng.uniform(0.5, 2.0)),
            gpus=tuple(int(g) for g in rng.choice([1, 2, 4, 8], options)),
            cost=tuple(float(c) for c in rng.uniform(0.0, 2.0, options)),
        )
        for _ in range(jobs)
    ]


def enumerated(choices, gpus):
    best = float("inf")
    for picked in itertools.product(*([None, *range(len(c.gpus))] for c in choices)):
        held = sum(c.gpus[o] for c, o in zip(choices, picked, strict=True) if o is not None)
        if held <= gpus:
            best = min(best, cost_of(choices, picked))
    return best


def test_the_table_equals_enumeration():
    rng = np.random.default_rng(5)
    for _ in range(150):
        choices = random_choices(rng, int(rng.integers(1, 5)), int(rng.integers(1, 4)))
        gpus = int(rng.integers(0, 13))
        found = choose(choices, gpus)
        assert sum(c.gpus[o] for c, o in zip(choices, found, strict=True) if o is not None) <= gpus
        assert cost_of(choices, found) == pytest.approx(enumerated(choices, gpus), abs=1e-12)


def test_the_table_equals_the_integer_program():
    rng = np.random.default_rng(6)
    for jobs, gpus in ((1, 1), (6, 8), (12, 16), (30, 64)):
        choices = random_choices(rng, jobs)
        model = choice_model(choices, gpus)
        solution = solve(model, Limits(relative_gap=0.0))
        assert solution.status is PlanStatus.OPTIMAL
        picked = chosen_options(model, choices)
        assert sum(c.gpus[o] for c, o in zip(choices, picked, strict=True) if o is not None) <= gpus
        assert cost_of(choices, picked) == pytest.approx(solution.objective, abs=1e-7)
        assert cost_of(choices, choose(choices, gpus)) == pytest.approx(solution.objective, abs=1e-7)


def test_no_gpus_no_choice():
    assert choose(random_choices(np.random.default_rng(1), 3), 0) == [None] * 3
    with pytest.raises(SettingsError, match="-1 GPUs"):
        choose([], -1)


def active_of(*attempts, arrival=0.0, number=0):
    made = tuple(Attempt(gpus=g, rate=r, believed=b) for g, r, b in attempts)
    job = ClusterJob(name=f"j{number}", arrival_s=arrival, work=1e6, attempts=made)
    return Active(number=number, job=job, remaining=1e6)


def test_the_cost_is_the_published_one():
    active = active_of((1, 1.0, 2.0), (4, 3.0, 6.0))
    choice = Sia().choice(120.0, active, options_of(active, Cluster()))
    assert choice.nothing == pytest.approx(1.1)
    np.testing.assert_allclose(choice.cost, [1.0 + 0.01, 3.0**-0.5 + 0.01])
    active.running, active.starts = 0, 2
    choice = Sia().choice(120.0, active, options_of(active, Cluster()))
    factor = (120.0 - 30.0) / 150.0
    assert choice.nothing == pytest.approx(1.1 + 0.01)
    np.testing.assert_allclose(choice.cost, [1.0, (3.0 * factor) ** -0.5 + 0.02])


def test_what_ran_is_known_and_scales_the_rest():
    active = active_of((1, 1.0, 1.0), (2, 1.5, 2.0), (8, 3.0, 8.0))
    assert options_of(active, Cluster()) == {0: 1.0, 1: 2.0, 2: 8.0}
    active.observed[1] = 1.5
    assert believed_rate(active, 2) == pytest.approx(8.0 * 0.75)
    assert believed_rate(active, 1) == 1.5
    active.observed[2] = 3.0
    assert options_of(active, Cluster()) == pytest.approx({0: 0.75, 1: 1.5, 2: 3.0})


def test_failed_options_are_left_and_doubtful_ones_come_last():
    active = active_of((2, 0.0, 5.0), (2, 1.0, 4.0), (4, 1.0, 0.0))
    assert list(options_of(active, Cluster())) == [0]
    active.failed.add(0)
    assert options_of(active, Cluster()) == {1: 4.0}
    active.failed.add(1)
    assert options_of(active, Cluster()) == {2: 4.0}


def test_two_jobs_share_what_one_would_take_alone():
    attempts = tuple(Attempt(gpus=g, rate=g**0.9, believed=g**0.9) for g in (1, 2, 4, 8))
    jobs = [ClusterJob(name=f"j{k}", arrival_s=600.0 * k, work=6000.0, attempts=attempts) for k in range(2)]
    run = simulate(jobs, Sia(), Cluster(nodes=1, gpus_per_node=8))
    first = [(s.job, s.gpus, s.start_s) for s in sorted(run.segments, key=lambda s: s.start_s)]
    assert first[0] == (0, 8, 0.0)
    assert {(0, 4, 600.0), (1, 4, 600.0)} <= set(first)


def test_a_wrong_belief_is_corrected_by_running():
    """Predicts perfect scaling; eight GPUs turn out no faster than one, and the waiting jobs get the other seven."""
    attempts = tuple(Attempt(gpus=g, rate=1.0, believed=float(g)) for g in (1, 2, 4, 8))
    jobs = [ClusterJob(name=f"j{k}", arrival_s=300.0 * k, work=3000.0, attempts=attempts) for k in range(4)]
    run = simulate(jobs, Sia(), Cluster(nodes=1, gpus_per_node=8))
    assert sum(s.start_s <= 1500.0 < s.end_s for s in run.segments) == 4
    assert max(s.gpus for s in run.segments if s.start_s <= 1500.0 < s.end_s) <= 4
