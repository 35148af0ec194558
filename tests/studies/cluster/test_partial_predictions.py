"""Job order with partial predictions (M10): its limits are SRPT and round robin; a wrong prediction cannot starve a job."""

import numpy as np
import pytest
from cluster_audit import audit_run

from slackwater.studies.cluster.schedulers import (
    PartialOrder,
    QueuedJob,
    completion_times,
    partly_known,
    turn,
)
from slackwater.studies.cluster.simulation import Attempt, Cluster, ClusterJob, simulate
from slackwater.warehouse.errors import SettingsError


def srpt(arrivals, sizes):
    """Simulate shortest remaining processing time, from each arrival to the next."""
    left, ends, now = dict(enumerate(sizes)), [0.0] * len(sizes), 0.0
    while left:
        here = [i for i in left if arrivals[i] <= now]
        later = [arrivals[i] for i in left if arrivals[i] > now]
        if not here:
            now = min(later)
            continue
        i = min(here, key=lambda i: (left[i], i))
        step = min([left[i], *(t - now for t in later)])
        left[i] -= step
        now += step
        if left[i] <= 1e-12:
            ends[i] = now
            del left[i]
    return np.array(ends)


def sharing(arrivals, sizes):
    """Simulate round robin with a vanishing quantum: all present jobs share equally."""
    left, ends, now = dict(enumerate(sizes)), [0.0] * len(sizes), 0.0
    while left:
        here = [i for i in left if arrivals[i] <= now]
        later = [arrivals[i] for i in left if arrivals[i] > now]
        if not here:
            now = min(later)
            continue
        step = min([min(left[i] for i in here) * len(here), *(t - now for t in later)])
        now += step
        for i in here:
            left[i] -= step / len(here)
            if left[i] <= 1e-12:
                ends[i] = now
                del left[i]
    return np.array(ends)


def streams(count, n=12):
    for seed in range(count):
        rng = np.random.default_rng(seed)
        yield np.cumsum(rng.exponential(1.2, n)).tolist(), rng.lognormal(0.0, 1.0, n).tolist(), rng


def test_all_predicted_is_srpt():
    for arrivals, sizes, _ in streams(30):
        np.testing.assert_allclose(completion_times(arrivals, sizes, sizes), srpt(arrivals, sizes), rtol=1e-9)


def test_none_predicted_is_round_robin():
    for arrivals, sizes, _ in streams(30):
        found = completion_times(arrivals, sizes, [None] * len(sizes))
        np.testing.assert_allclose(found, sharing(arrivals, sizes), rtol=1e-9)


def test_more_exact_predictions_help_and_round_robin_is_within_twice_the_best():
    best, by_share = [], {share: [] for share in (0.0, 0.25, 0.5, 0.75, 1.0)}
    for _, sizes, rng in streams(40, 20):
        together = [0.0] * len(sizes)
        best.append(srpt(together, sizes).sum())
        for share, sums in by_share.items():
            sums.append(
                completion_times(together, sizes, partly_known(sizes, share=share, error=0.0, rng=rng)).sum()
            )
    ratios = {share: np.array(sums) / best for share, sums in by_share.items()}
    assert ratios[0.0].max() < 2.0
    assert ratios[1.0] == pytest.approx(1.0)
    assert min(r.min() for r in ratios.values()) > 1.0 - 1e-9
    means = [ratios[share].mean() for share in sorted(ratios)]
    assert means == sorted(means, reverse=True)


def test_the_machine_never_idles_whatever_the_predictions():
    for arrivals, sizes, rng in streams(30):
        found = completion_times(arrivals, sizes, partly_known(sizes, share=0.6, error=1.5, rng=rng))
        assert found.max() == pytest.approx(srpt(arrivals, sizes).max())
        assert (found >= np.array(arrivals) + np.array(sizes) - 1e-9).all()


def test_a_job_that_outlives_its_prediction_joins_the_round_robin():
    assert turn([QueuedJob(attained=1.0, predicted=1.0), QueuedJob(attained=2.0, predicted=None)]) == [0, 1]
    # A job of size 10 predicted as 1 has its turn once the other has had 1; from t = 2 on the two share.
    found = completion_times([0.0, 0.0], [10.0, 2.0], [1.0, None])
    np.testing.assert_allclose(found, [12.0, 4.0])


def test_bad_input_is_told():
    with pytest.raises(SettingsError, match="1 arrivals, 2 sizes"):
        completion_times([0.0], [1.0, 2.0], [None, None])
    with pytest.raises(SettingsError, match="1 not positive"):
        completion_times([0.0], [1.0], [0.0])


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_on_the_cluster_predictions_shorten_the_mean(share):
    means = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        arrivals, sizes = np.cumsum(rng.exponential(400.0, 60)), rng.lognormal(7.5, 1.2, 60)
        guesses = partly_known(sizes.tolist(), share=share, error=0.0, rng=rng)
        jobs = [
            ClusterJob(
                name=f"j{k}", arrival_s=float(t), work=float(w), predicted_work=p,
                attempts=(Attempt(gpus=8, rate=1.0, believed=1.0),),
            )
            for k, (t, w, p) in enumerate(zip(arrivals, sizes, guesses, strict=True))
        ]  # fmt: skip
        cluster = Cluster(nodes=4, gpus_per_node=8)
        run = simulate(jobs, PartialOrder(), cluster)
        audit_run(run)
        known = [
            ClusterJob(
                name=j.name, arrival_s=j.arrival_s, work=j.work, attempts=j.attempts, predicted_work=j.work
            )
            for j in jobs
        ]
        means.append(run.completion_s.mean() / simulate(known, PartialOrder(), cluster).completion_s.mean())
    assert np.mean(means) == pytest.approx(1.0) if share == 1.0 else np.mean(means) > 1.0
