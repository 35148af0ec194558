"""The surface of true rates (M9.5): exact at measurements, smooth between them, never outside their range."""

import numpy as np
import pytest

from slackwater.studies.cluster.stream import RateGrid, RateSurface
from slackwater.warehouse.errors import SettingsError


def distribution(grid):
    """Return rates from a fixed time per step, longer on several GPUs, and a time per token."""
    tokens = grid.tokens_per_sample * grid.batch / grid.gpus
    return grid.gpus * tokens / (0.15 + 0.1 * np.log2(grid.gpus) + tokens * 3e-4)


def whole_grid(lengths=(512, 2048, 8192)):
    cells = [
        (g, b, t) for g in (1, 2, 4, 8) for b in (1, 2, 4, 8, 16, 32, 64, 128) for t in lengths if b % g == 0
    ]
    gpus, batch, length = (np.array(c) for c in zip(*cells, strict=True))
    return RateGrid(gpus=gpus, batch=batch, tokens_per_sample=length)


def part(grid, at):
    return RateGrid(gpus=grid.gpus[at], batch=grid.batch[at], tokens_per_sample=grid.tokens_per_sample[at])


def test_measured_rates_are_kept_and_repeats_become_their_median():
    grid = whole_grid()
    twice = RateGrid(
        **{n: np.concatenate([getattr(grid, n)] * 3) for n in ("gpus", "batch", "tokens_per_sample")}
    )
    measured = np.concatenate([distribution(grid), distribution(grid) * 1.1, distribution(grid) * 0.5])
    np.testing.assert_allclose(RateSurface(grid=twice, measured=measured).rates(grid), distribution(grid))


def test_what_was_left_out_is_read_from_the_surface():
    grid = whole_grid()
    known = np.random.default_rng(2).permutation(len(grid.gpus)) >= 12
    surface = RateSurface(grid=part(grid, known), measured=distribution(part(grid, known)))
    missing = part(grid, ~known)
    np.testing.assert_allclose(surface.rates(missing), distribution(missing), rtol=0.25)
    assert np.median(np.abs(surface.rates(missing) / distribution(missing) - 1)) < 0.05


def test_a_rate_per_gpu_stays_within_the_measured_ones():
    grid = whole_grid((2048,))
    near = grid.batch / grid.gpus <= 4
    surface = RateSurface(grid=part(grid, near), measured=distribution(part(grid, near)))
    far = RateGrid(gpus=np.array([1, 8]), batch=np.array([4096, 8]), tokens_per_sample=np.array([65536, 1]))
    per_gpu = distribution(part(grid, near)) / part(grid, near).gpus
    found = surface.rates(far) / far.gpus
    assert (found <= per_gpu.max() + 1e-9).all()
    assert (found >= per_gpu.min() - 1e-9).all()


def test_few_or_equal_runs_give_their_middle_per_gpu():
    one = RateGrid(gpus=np.array([2]), batch=np.array([8]), tokens_per_sample=np.array([512]))
    other = RateGrid(gpus=np.array([4]), batch=np.array([8]), tokens_per_sample=np.array([512]))
    assert RateSurface(grid=one, measured=np.array([100.0])).rates(other) == pytest.approx([200.0])
    with pytest.raises(SettingsError, match="not all positive"):
        RateSurface(grid=one, measured=np.array([0.0]))
