"""Simulated streams compared with closed forms, and with clusters of known behaviour (M8.5)."""

import numpy as np
import pytest

from slackwater.optimization.renting.budget import JobType, rent
from slackwater.optimization.renting.simulation import (
    Renting,
    Stream,
    budget_frontier,
    drawn_widths,
    equal_widths,
    estimate,
    job_stream,
    load_of,
    play_fifo,
    play_sharing,
    play_widths,
    stream_of,
)
from slackwater.optimization.renting.speedup import (
    SIZE_DISTRIBUTIONS,
    AmdahlSpeedup,
    Deterministic,
    Exponential,
    HeavyTailed,
    PowerSpeedup,
    TableSpeedup,
)
from slackwater.warehouse.errors import SettingsError

ARRIVAL_LAWS = ("poisson", "batches", "modulated")
#: Bursts: mean batch size; rates of the two states of a modulated stream relative to the mean; mean
#: duration of a state in mean gaps between arrivals.
BATCH, CALM, BUSY, STAY = 4.0, 0.25, 1.75, 20.0


def arrival_times(distribution, rate_per_hour, hours, rng):
    """Return ascending arrival times in [0, ``hours``) at mean rate ``rate_per_hour``, shape (n,).

    "poisson"; "batches": a Poisson stream of batches of geometric size, mean `BATCH`; "modulated":
    Poisson at `CALM` or `BUSY` times the rate in turns of exponential length, mean `STAY` gaps. All
    are stationary.
    """
    if distribution == "poisson":
        return np.sort(rng.uniform(0.0, hours, rng.poisson(rate_per_hour * hours)))
    if distribution == "batches":
        starts = np.sort(rng.uniform(0.0, hours, rng.poisson(rate_per_hour / BATCH * hours)))
        return np.repeat(starts, rng.geometric(1.0 / BATCH, len(starts)))
    return _modulated(rate_per_hour, hours, rng)


def _modulated(rate_per_hour, hours, rng):
    """Return a modulated stream; the initial state is random and both last equally long on average: stationary."""
    turn = STAY / rate_per_hour
    ends = np.cumsum(rng.exponential(turn, int(2 * hours / turn) + 50))
    while ends[-1] < hours:
        ends = np.concatenate([ends, ends[-1] + np.cumsum(rng.exponential(turn, 50))])
    first = int(rng.integers(2))
    fastest = np.sort(rng.uniform(0.0, hours, rng.poisson(BUSY * rate_per_hour * hours)))
    busy = (np.searchsorted(ends, fastest, side="right") + first) % 2 == 1
    return np.asarray(fastest[busy | (rng.random(len(fastest)) < CALM / BUSY)])


TYPES = [
    JobType(name="amdahl", rate_per_hour=0.4, mean_hours=1.0, speedup=AmdahlSpeedup(parallel=0.8)),
    JobType(name="root", rate_per_hour=0.4, mean_hours=1.0, speedup=PowerSpeedup(exponent=0.5)),
]
DENTED = [
    JobType(
        name="dented",
        rate_per_hour=1.0,
        mean_hours=1.0,
        speedup=TableSpeedup(gpus=(1, 2, 3), speedups=(1.0, 1.2, 1.8)),
    )
]
#: The seeds are fixed, so a 3-sigma miss of a true mean (a chance of one in several hundred) cannot recur at random.
STREAMS, HOURS, SEED = 24, 4000.0, 5


def played(types, rental, arrivals, sizes, *, streams=STREAMS, hours=HOURS, seed=SEED):
    def play(rng):
        times = [arrival_times(arrivals, kind.rate_per_hour, hours, rng) for kind in types]
        stream = stream_of(types, times, hours=hours, sizes=sizes, rng=rng)
        return play_widths(types, drawn_widths(rental, stream, rng), stream)

    return estimate(play, streams=streams, seed=seed)


@pytest.mark.parametrize("sizes", list(SIZE_DISTRIBUTIONS.values()), ids=list(SIZE_DISTRIBUTIONS))
@pytest.mark.parametrize("arrivals", ARRIVAL_LAWS)
@pytest.mark.parametrize(("types", "budget"), [(TYPES, 1.5), (DENTED, 4 / 3)], ids=["concave", "mixed"])
def test_fixed_widths_meet_the_closed_form(types, budget, arrivals, sizes):
    """E[T] and mean GPUs within three standard errors, for all arrival and size distributions (M8.2, M8.5)."""
    rental = rent(types, budget)
    found = played(types, rental, arrivals, sizes)
    assert abs(found.response_hours - rental.response_hours) < 3 * found.response_error
    assert abs(found.gpus - rental.spend) < 3 * found.gpus_error
    # The errors are small enough to detect a wrong formula: below 3 % of the measured values.
    assert found.response_error < 0.03 * found.response_hours
    assert found.gpus_error < 0.03 * found.gpus


@pytest.mark.slow
@pytest.mark.parametrize("sizes", list(SIZE_DISTRIBUTIONS.values()), ids=list(SIZE_DISTRIBUTIONS))
@pytest.mark.parametrize("arrivals", ARRIVAL_LAWS)
def test_z_scores_of_many_seeds_are_standard(arrivals, sizes):
    """Guards against a lucky seed: over 60 seeds z-scores have mean 0 and at most 3 % lie beyond three errors."""
    rental = rent(TYPES, 1.5)
    z = []
    for seed in range(60):
        found = played(TYPES, rental, arrivals, sizes, streams=20, hours=1500.0, seed=seed)
        z.append((found.response_hours - rental.response_hours) / found.response_error)
        z.append((found.gpus - rental.spend) / found.gpus_error)
    assert np.mean(np.abs(z) > 3) <= 0.03
    assert abs(np.mean(z)) < 0.35


@pytest.mark.parametrize("distribution", ARRIVAL_LAWS)
def test_arrivals_have_their_rate_and_bursts_are_bursty(distribution):
    rng = np.random.default_rng(3)
    counts = np.array(
        [np.histogram(arrival_times(distribution, 2.0, 2000.0, rng), bins=200)[0] for _ in range(10)]
    )
    assert counts.mean() == pytest.approx(20.0, rel=0.05)
    spread = counts.var() / counts.mean()
    assert (0.85 < spread < 1.15) if distribution == "poisson" else spread > 3.0
    times = arrival_times(distribution, 2.0, 100.0, rng)
    assert (np.diff(times) >= 0).all()
    assert times.min() >= 0.0
    assert times.max() < 100.0


def test_equal_sharing_of_one_gpu_is_processor_sharing():
    """M/G/1 processor sharing: E[T] = E[X] / (1 - rho), the same for every distribution of sizes."""
    one = [JobType(name="one", rate_per_hour=0.5, mean_hours=1.0, speedup=AmdahlSpeedup(parallel=0.8))]
    for distribution in (Exponential(), Deterministic()):

        def play(rng, distribution=distribution):
            stream = job_stream(one, hours=3000.0, sizes=distribution, rng=rng)
            return play_sharing(one, 1, stream)

        found = estimate(play, streams=16, seed=2)
        assert abs(found.response_hours - 2.0) < 3 * found.response_error


def test_fifo_on_one_group_is_the_single_server_queue():
    """Pollaczek and Khinchine: E[T] = E[S] + lambda E[S^2] / (2 (1 - rho)), on a group of 4 GPUs of speedup 2.5."""
    four = [JobType(name="four", rate_per_hour=1.0, mean_hours=1.25, speedup=AmdahlSpeedup(parallel=0.8))]
    for distribution, second in ((Exponential(), 2.0), (Deterministic(), 1.0)):

        def play(rng, distribution=distribution):
            stream = job_stream(four, hours=6000.0, sizes=distribution, rng=rng)
            return play_fifo(four, 4, 4, stream)

        found = estimate(play, streams=16, seed=2)
        expected = 0.5 + second * 0.25 / (2 * 0.5)
        assert abs(found.response_hours - expected) < 3 * found.response_error


def test_equal_sharing_by_hand():
    """Two jobs of 2 h on 2 GPUs, s(2) = 1.5: alone from 0 to 1, together to the first end, alone again."""
    table = [
        JobType(
            name="t",
            rate_per_hour=1.0,
            mean_hours=1.0,
            speedup=TableSpeedup(gpus=(1, 2), speedups=(1.0, 1.5)),
        )
    ]
    stream = Stream(time=np.array([0.0, 1.0]), kind=np.array([0, 0]), size=np.array([2.0, 2.0]), hours=10.0)
    # First: 1.5 done at 1, the last 0.5 on one GPU to 1.5. Second: 0.5 done at 1.5, 1.5 more at pace 1.5 to 2.5.
    # Measured from hour 1 on: only the second, 1.5 hours.
    assert play_sharing(table, 2, stream).response_hours == pytest.approx(1.5)
    assert play_fifo(table, 2, 2, stream).response_hours == pytest.approx(4 / 3 + 4 / 3 - 1.0)


def test_clusters_that_cannot_keep_up_are_refused():
    stream = job_stream(TYPES, hours=100.0, sizes=Exponential(), rng=np.random.default_rng(1))
    for play in (
        lambda: play_sharing(TYPES, 0, stream),
        lambda: play_fifo(TYPES, 3, 3, stream) and play_fifo(TYPES, 1, 2, stream),
    ):
        with pytest.raises(SettingsError, match="unstable"):
            play()
    with pytest.raises(SettingsError, match="at least 2"):
        estimate(lambda rng: None, streams=1, seed=1)
    with pytest.raises(SettingsError, match="finite variance"):
        HeavyTailed(shape=2.0)


def test_the_optimum_is_never_worse_than_its_baselines():
    for budget in (1.0, 2.3, 5.0):
        best = rent(TYPES, budget)
        equal = equal_widths(TYPES, budget)
        assert equal.spend == pytest.approx(budget)
        assert best.response_hours <= equal.response_hours + 1e-12


def test_the_frontier_falls_and_flattens():
    budgets = np.linspace(0.7, 4.0, 25)
    frontier = budget_frontier(Renting(types=tuple(TYPES), budget=1.5), budgets.tolist())
    assert len(frontier) == sum(budgets > load_of(TYPES))
    response = np.array([one.response_hours for one in frontier])
    assert (np.diff(response) < 0).all()
    assert (np.diff(response, 2) > -1e-9).all()
