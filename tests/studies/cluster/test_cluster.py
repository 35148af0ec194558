"""The cluster simulation (M9.5): exact time, no GPU assigned twice, order of arrival, queueing formulas, determinism."""

import math
from dataclasses import replace

import numpy as np
import pytest
from cluster_audit import audit_run

from slackwater.studies.cluster.schedulers import Fifo, Sia
from slackwater.studies.cluster.simulation import (
    Attempt,
    Cluster,
    ClusterJob,
    fits,
    metrics_of,
    pack,
    reduction_interval,
    simulate,
)
from slackwater.warehouse.errors import AuditError, JobError, SettingsError

BARE = Cluster(nodes=1, gpus_per_node=4, start_up_s=0.0, failure_s=10.0)


def job(name, arrival, work, *attempts, **more):
    made = tuple(Attempt(gpus=g, rate=r, believed=b) for g, r, b in attempts)
    return ClusterJob(name=name, arrival_s=arrival, work=work, attempts=made, **more)


def random_jobs(seed, n=60, failing=0.3):
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(120.0, n))
    jobs = []
    for k in range(n):
        attempts = [
            (g, 0.0 if rng.random() < failing else g ** rng.uniform(0.4, 1.0), float(g))
            for g in (1, 2, 4, 8)
            for _ in range(2)
        ]
        attempts = [attempts[i] for i in rng.permutation(len(attempts))] + [(1, 1.0, 1.0)]
        jobs.append(job(f"j{k}", float(arrivals[k]), float(rng.lognormal(7.0, 1.0)), *attempts))
    return jobs


def test_one_job_takes_its_start_up_and_its_work():
    run = simulate([job("a", 5.0, 100.0, (2, 4.0, 1.0))], Fifo(), Cluster(start_up_s=30.0))
    assert run.finished_s == (5.0 + 30.0 + 25.0,)
    m = metrics_of(run)
    assert m.mean_s == 55.0
    assert m.waiting_s == 0.0
    assert m.gpu_hours == pytest.approx(2 * 55.0 / 3600)


def test_an_attempt_that_fails_is_followed_by_the_next_and_keeps_its_place():
    jobs = [job("a", 0.0, 100.0, (4, 0.0, 9.0), (2, 10.0, 1.0)), job("b", 1.0, 100.0, (4, 10.0, 1.0))]
    run = simulate(jobs, Fifo(), BARE)
    assert [s.failed for s in run.segments] == [True, False, False]
    assert run.finished_s == (10.0 + 10.0, 20.0 + 10.0)
    audit_run(run)
    assert metrics_of(run).failed_starts == 0.5


def test_head_of_line_blocks_a_small_job_behind_a_large_one():
    jobs = [
        job("a", 0.0, 10.0, (3, 1.0, 1.0)),
        job("wide", 1.0, 10.0, (4, 1.0, 1.0)),
        job("small", 2.0, 1.0, (1, 1.0, 1.0)),
    ]
    run = simulate(jobs, Fifo(), BARE)
    assert run.finished_s == (10.0, 20.0, 21.0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("scheduler", [Fifo(), Sia()])
def test_invariants_of_random_streams(scheduler, seed):
    cluster = Cluster(nodes=2, gpus_per_node=8)
    run = simulate(random_jobs(seed), scheduler, cluster)
    audit_run(run)
    assert (run.completion_s > 0).all()
    assert metrics_of(run).utilisation <= 1.0
    again = simulate(random_jobs(seed), scheduler, cluster)
    assert again.segments == run.segments


def test_fifo_starts_in_the_order_of_arrival():
    run = simulate(random_jobs(9, failing=0.0), Fifo(), Cluster(nodes=2, gpus_per_node=8))
    starts = {s.job: s.start_s for s in run.segments}
    assert [starts[k] for k in range(len(run.jobs))] == sorted(starts.values())


def test_no_gpu_idles_while_a_one_gpu_job_waits():
    rng = np.random.default_rng(3)
    arrivals = np.cumsum(rng.exponential(1.0, 400))
    jobs = [
        job(f"j{k}", float(t), float(w), (1, 1.0, 1.0))
        for k, (t, w) in enumerate(zip(arrivals, rng.exponential(3.6, 400), strict=True))
    ]
    run = simulate(jobs, Fifo(), BARE)
    starts = {s.job: s for s in run.segments}
    for k, one in enumerate(jobs):
        started = starts[k].start_s
        if started > one.arrival_s:
            between = (one.arrival_s + started) / 2
            assert sum(s.start_s <= between < s.end_s for s in run.segments) == 4


@pytest.mark.parametrize(("servers", "load"), [pytest.param(1, 0.6, marks=pytest.mark.slow), (4, 0.75)])
def test_mean_waiting_of_m_m_c(servers, load):
    """Erlang's C formula, within three standard errors over independent streams."""
    a = servers * load
    blocked = a**servers / math.factorial(servers) / (1 - load)
    erlang_c = blocked / (sum(a**k / math.factorial(k) for k in range(servers)) + blocked)
    expected = erlang_c / (servers * (1.0 - load))
    waits = []
    for seed in range(16):
        rng = np.random.default_rng([seed, servers])
        arrivals = np.cumsum(rng.exponential(1.0 / a, 800))
        sizes = rng.exponential(1.0, 800)
        jobs = [
            job(f"j{k}", float(t), float(w), (1, 1.0, 1.0))
            for k, (t, w) in enumerate(zip(arrivals, sizes, strict=True))
        ]
        run = simulate(jobs, Fifo(), Cluster(nodes=servers, gpus_per_node=1, start_up_s=0.0))
        waits.append(float((run.completion_s - sizes)[150:].mean()))
    error = np.std(waits, ddof=1) / math.sqrt(len(waits))
    assert abs(np.mean(waits) - expected) < 3 * error
    assert error < 0.2 * expected


def test_packing_moves_nobody_unless_it_must():
    held = {0: (0, 4), 1: (1, 4)}
    assert pack({0: 4, 1: 4, 2: 4}, held, nodes=2, gpus_per_node=8) == {0: 0, 1: 1, 2: 0}
    moved = pack({0: 4, 1: 4, 2: 8}, held, nodes=2, gpus_per_node=8)
    assert sorted([moved[0], moved[1]]) == [1 - moved[2]] * 2
    rng = np.random.default_rng(1)
    for _ in range(200):
        widths = [int(w) for w in rng.choice([1, 2, 4, 8], 30)]
        wanted = {}
        for k, w in enumerate(widths):
            if sum(wanted.values()) + w <= 32:
                wanted[k] = w
        old = {k: (int(rng.integers(4)), w) for k, w in wanted.items() if rng.random() < 0.5 and w == 1}
        assert pack(wanted, old, nodes=4, gpus_per_node=8).keys() == wanted.keys()
    assert not fits([3, 3], [4])


def test_a_scheduler_that_asks_for_too_much_is_caught():
    class Greedy:
        name, round_s = "greedy", None

        def decide(self, now_s, jobs, cluster):
            return {a.number: 0 for a in jobs}

    class Idle(Greedy):
        def decide(self, now_s, jobs, cluster):
            return {}

    jobs = [job("a", 0.0, 1.0, (4, 1.0, 1.0)), job("b", 0.0, 1.0, (4, 1.0, 1.0))]
    with pytest.raises(AuditError, match="asks for 8 of 4 GPUs"):
        simulate(jobs, Greedy(), BARE)
    with pytest.raises(AuditError, match="lets 2 jobs wait on an empty cluster"):
        simulate(jobs, Idle(), BARE)


def test_the_audit_finds_what_does_not_add_up():
    run = simulate(random_jobs(2, n=8), Fifo(), Cluster(nodes=2, gpus_per_node=8))
    one = run.segments[-1]
    for wrong in (
        replace(one, work=one.work * 1.1),
        replace(one, end_s=one.end_s + 50.0),
        replace(one, gpus=one.gpus + 1),
    ):
        with pytest.raises(AuditError):
            audit_run(replace(run, segments=(*run.segments[:-1], wrong)))
    with pytest.raises(AuditError):
        audit_run(replace(run, segments=(*run.segments, *[replace(one, node=0)] * 9)))


def test_bad_input_is_told():
    with pytest.raises(JobError, match=" 0 of which run"):
        job("a", 0.0, 1.0, (1, 0.0, 1.0))
    with pytest.raises(SettingsError, match="only on more than the 4 GPUs"):
        simulate([job("a", 0.0, 1.0, (8, 1.0, 1.0))], Fifo(), BARE)
    with pytest.raises(SettingsError, match="no jobs"):
        simulate([], Fifo(), BARE)
    with pytest.raises(SettingsError, match="at least one node"):
        Cluster(nodes=0)


def test_reductions_are_paired_and_their_interval_covers():
    assert reduction_interval(np.array([100.0, 10.0]), np.array([22.0, 2.2])) == pytest.approx(
        (0.78, 0.78, 0.78)
    )
    rng, covered = np.random.default_rng(4), 0
    for _ in range(400):
        size, ratio = rng.lognormal(0.0, 1.0, 6), np.exp(np.log(0.4) + 0.3 * rng.standard_normal((3, 6)))
        mean, low, high = reduction_interval(np.tile(size, (3, 1)), size * ratio)
        assert low < mean < high < 1.0
        covered += low < 0.6 < high
    assert 0.92 < covered / 400 < 0.98
