"""Network of `dva` in JAX: a hierarchical variational autoencoder trained by coupled diffusion, with a denoising energy.

After Koa, Ma, Ng and Chua, "Diffusion Variational Autoencoder for Tackling Stochasticity in Multi-Step Regression Stock Price
Prediction" (CIKM 2023, arXiv 2309.00073): X_n and Y_n are the window and the target at a common step n of two diffusions, the
target's slower by `TARGET_SCALE`. The autoencoder draws latents from X_n at two scales and returns a normal distribution for
every step of Y_n::

    X_n = sqrt(a_n) X + sqrt(1 - a_n) e,   Y_n = sqrt(b_n) Y + sqrt(1 - b_n) e',
    a_n = prod_{i<=n} (1 - beta_i),   b_n = prod_{i<=n} (1 - 0.1 beta_i),   beta from 0 to 0.02

The energy E is learned by denoising score matching: a drawn prediction minus the gradient of E is close to
the clean target, and a step along this gradient cleans the prediction. The loss is the mean of (Y_n - m)^2, 0.5 times the negative
log likelihood of Y_n, 0.01 / 48 times the divergence of the latents, and the mean of (Y - y + grad E(y))^2 for draws y.

Deviations from the paper: counts are in halves of the capacity, logarithms of prices in three recent changes, both relative to the
newest value; two scales of convolutions, no recurrent part; all sizes and weights but 0.5, 0.1 and that of the score matching; the
milder diffusion, the squared error, the divergence, and draws smoothed by a normal kernel.

The module is imported only for training and prediction, because JAX is an optional library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import numpy as np

# One thread fixes the order of sums; workers are processes. Must be set before JAX creates its first array.
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, Any]

#: Number of leading columns of a window that carry values; the other columns (observed, clock, state) get no noise.
NOISY = 2
#: Channels of the cells and of the latents at each scale, hidden units of the energy.
WIDTH, LATENT, HIDDEN = 24, 4, 64
#: Steps of the diffusion, the largest noise of the window, and the factor of the target's noise.
DIFFUSION, BETA_END, TARGET_SCALE = 100, 0.02, 0.1
#: Loss weights relative to the squared error: log likelihood, divergence of the latents, score matching.
ZETA, KAPPA, ETA = 0.5, 0.01, 1.0
#: Windows in a batch, batches per compiled call, the maximal learning rate of Adam.
BATCH, CALL, RATE = 64, 20, 2e-3
#: Draws per origin, origins per compiled call.
DRAWS, ORIGINS = 32, 16
#: Means and logarithms of standard deviations stay within this distance from 0.
_SOFT = 5.0


def signal_share(scale: float) -> np.ndarray:
    """Return the share of the clean series' variance that remains at each diffusion step, shape (`DIFFUSION`,)."""
    return np.cumprod(1.0 - scale * np.linspace(0.0, BETA_END, DIFFUSION))


_KEPT, _KEPT_TARGET = (np.asarray(signal_share(scale), dtype=np.float32) for scale in (1.0, TARGET_SCALE))


# ---
# Parameters.


def fresh(seed: int, *, length: int, columns: int) -> dict[str, np.ndarray]:
    """Return initial parameters by name of a network with ``length`` slots of ``columns`` as input and ``length`` steps as output.

    ``length`` is a multiple of four.
    """
    rng = np.random.default_rng(seed)
    out: dict[str, np.ndarray] = {}

    def dense(name: str, inward: int, outward: int, gain: float = 1.0) -> None:
        out[f"{name}.w"] = rng.normal(size=(inward, outward)) * gain / np.sqrt(inward)
        out[f"{name}.b"] = np.zeros(outward)

    def cell(name: str) -> None:
        dense(f"{name}.in", WIDTH, 2 * WIDTH)
        out[f"{name}.depth"] = rng.normal(size=(5, 2 * WIDTH)) / np.sqrt(5)
        dense(f"{name}.out", 2 * WIDTH, WIDTH)
        dense(f"{name}.squeeze", WIDTH, WIDTH // 2)
        dense(f"{name}.excite", WIDTH // 2, WIDTH)

    dense("stem", 2 * columns, WIDTH)
    dense("down", 2 * WIDTH, WIDTH)
    dense("up", WIDTH, 2 * WIDTH)
    for name in ("fine.1", "fine.2", "coarse.1", "coarse.2", "decode.coarse", "decode.fine", "post"):
        cell(name)
    dense("top", WIDTH, 2 * LATENT, 0.3)
    dense("prior", WIDTH, 2 * LATENT, 0.1)
    dense("combine.enc", WIDTH, WIDTH)
    dense("bottom", WIDTH, 2 * LATENT, 0.3)
    for name in ("combine.top", "combine.bottom"):
        dense(name, WIDTH + LATENT, WIDTH)
    out["begin"] = 0.3 * rng.normal(size=(length // 4, WIDTH))
    dense("head", WIDTH, 4, 0.1)
    dense("energy.in", length + 2, HIDDEN)
    dense("energy.mid", HIDDEN, HIDDEN)
    for name in ("energy.a", "energy.b", "energy.c"):
        dense(name, HIDDEN, 1, 0.1)
    return {name: value.astype(np.float32) for name, value in out.items()}


# ---
# Autoencoder: arrays are (draws or windows, places, channels); the newest slot and the nearest step come first.


def _dense(p: Params, name: str, x: Any) -> Any:
    return x @ p[f"{name}.w"] + p[f"{name}.b"]


def _cell(p: Params, name: str, x: Any) -> Any:
    """Apply a residual cell as in NVAE.

    It expands the channels, convolves each over five places, applies squeeze and excitation, and adds 0.3 of the result.
    """
    mean = x.mean(axis=-1, keepdims=True)
    y = (x - mean) * lax.rsqrt(x.var(axis=-1, keepdims=True) + 1e-4)
    y = jax.nn.swish(_dense(p, f"{name}.in", y))
    wide = jnp.pad(y, ((0, 0), (2, 2), (0, 0)))
    taps, places = p[f"{name}.depth"], y.shape[1]
    y = sum(wide[:, i : i + places] * taps[i] for i in range(5))
    y = _dense(p, f"{name}.out", jax.nn.swish(y))
    gate = jax.nn.elu(_dense(p, f"{name}.squeeze", y.mean(axis=1)))
    return x + 0.3 * y * jax.nn.sigmoid(_dense(p, f"{name}.excite", gate))[:, None]


def _halved(x: Any) -> Any:
    """Concatenate the channels of two neighbouring places."""
    return x.reshape(x.shape[0], x.shape[1] // 2, 2 * x.shape[2])


def _distribution(parts: Any) -> tuple[Any, Any]:
    """Return mean and log standard deviation, both within `_SOFT` of 0."""
    mean, log = jnp.split(_SOFT * jnp.tanh(parts / _SOFT), 2, axis=-1)
    return mean, log


def _forward(p: Params, x: Any, top: Any, bottom: Any) -> tuple[Any, Any, Any]:
    """Return mean and log standard deviation (n, length) of the target, and the divergence of the latents (n,).

    Windows x have shape (n, length, columns); ``top`` (n, length / 4, `LATENT`) and ``bottom`` (n, length / 2, `LATENT`) are
    standard normal draws.
    """
    fine = _cell(p, "fine.2", _cell(p, "fine.1", _dense(p, "stem", _halved(x))))
    coarse = _cell(p, "coarse.2", _cell(p, "coarse.1", _dense(p, "down", _halved(fine))))
    mean, log = _distribution(_dense(p, "top", jax.nn.elu(coarse)))
    apart = (0.5 * (mean**2 + jnp.exp(2 * log)) - 0.5 - log).sum(axis=(1, 2))
    z = mean + jnp.exp(log) * top
    h = jnp.broadcast_to(p["begin"], (x.shape[0], *p["begin"].shape))
    h = h + _dense(p, "combine.top", jnp.concatenate([h, z], axis=-1))
    h = _cell(p, "decode.coarse", h)
    h = _dense(p, "up", h).reshape(h.shape[0], 2 * h.shape[1], WIDTH)
    # The distribution of the lower latents is relative to its prior given the upper latents (NVAE's residual normal).
    middle, own = _distribution(_dense(p, "prior", jax.nn.elu(h)))
    shift, stretch = _distribution(_dense(p, "bottom", jax.nn.elu(fine + _dense(p, "combine.enc", h))))
    apart += (0.5 * (shift**2 * jnp.exp(-2 * own) + jnp.exp(2 * stretch)) - 0.5 - stretch).sum(axis=(1, 2))
    z = middle + shift + jnp.exp(own + stretch) * bottom
    h = h + _dense(p, "combine.bottom", jnp.concatenate([h, z], axis=-1))
    h = _cell(p, "post", _cell(p, "decode.fine", h))
    head = _dense(p, "head", jax.nn.elu(h)).reshape(x.shape[0], x.shape[1], 2)
    return head[..., 0], _SOFT * jnp.tanh(head[..., 1] / _SOFT), apart


def _energy(p: Params, y: Any, level: Any) -> Any:
    """Return the energy of a predicted path y (length,) given the origin's state ``level`` (2,)."""
    h = jnp.tanh(_dense(p, "energy.in", jnp.concatenate([y, level])))
    h = h + jax.nn.elu(_dense(p, "energy.mid", h))
    a, b, c = (_dense(p, f"energy.{name}", one)[0] for name, one in (("a", h), ("b", h), ("c", h**2)))
    return a * b + c


def _cleaned(p: Params, y: Any, level: Any) -> Any:
    """Return the paths y (n, length) after a gradient step down the energy."""
    return y - jax.vmap(jax.grad(_energy, argnums=1), in_axes=(None, 0, 0))(p, y, level)


# ---
# Training.


def _loss(p: Params, key: Any, x: Any, y: Any, known: Any) -> Any:
    """Return the mean loss of windows x and targets y (n, length); ``known`` is 1 where a target was observed."""
    steps, first, second, third, fourth, fifth = jax.random.split(key, 6)
    n, length = y.shape
    at = jax.random.randint(steps, (n,), 0, DIFFUSION)
    kept_share, kept_target = jnp.asarray(_KEPT)[at][:, None, None], jnp.asarray(_KEPT_TARGET)[at][:, None]
    noise = jax.random.normal(first, (n, length, NOISY))
    values = jnp.sqrt(kept_share) * x[..., :NOISY] + jnp.sqrt(1 - kept_share) * noise
    x_noisy = jnp.concatenate([values, x[..., NOISY:]], axis=-1)
    y_noisy = jnp.sqrt(kept_target) * y + jnp.sqrt(1 - kept_target) * jax.random.normal(second, y.shape)
    top = jax.random.normal(third, (n, length // 4, LATENT))
    bottom = jax.random.normal(fourth, (n, length // 2, LATENT))
    mean, log, apart = _forward(p, x_noisy, top, bottom)
    total = jnp.maximum(known.sum(), 1.0)
    squared = (known * (y_noisy - mean) ** 2).sum() / total
    surprise = (known * (0.5 * ((y_noisy - mean) * jnp.exp(-log)) ** 2 + log)).sum() / total
    # The energy is trained on draws of the autoencoder; its gradient must not change the autoencoder.
    drawn = lax.stop_gradient(mean + jnp.exp(log) * jax.random.normal(fifth, y.shape))
    missed = known * (y - _cleaned(p, drawn, x[:, 0, -2:]))
    score = (missed**2).sum() / total
    return squared + ZETA * surprise + KAPPA * apart.mean() / length + ETA * score


def _adam(
    state: tuple[Params, Params, Params, Any], given: tuple[Any, ...]
) -> tuple[tuple[Params, Params, Params, Any], Any]:
    p, m, v, t = state
    key, rate, x, y, known = given
    value, slope = jax.value_and_grad(_loss)(p, key, x, y, known)
    norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(slope)))
    slope = jax.tree.map(lambda g: g / jnp.maximum(norm, 1.0), slope)
    t = t + 1
    m = jax.tree.map(lambda a, g: 0.9 * a + 0.1 * g, m, slope)
    v = jax.tree.map(lambda a, g: 0.99 * a + 0.01 * g**2, v, slope)
    size = rate * jnp.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    p = jax.tree.map(lambda a, b, c: a - size * b / (jnp.sqrt(c) + 1e-8), p, m, v)
    return (p, m, v, t), value


@cache
def _training() -> Any:
    return jax.jit(lambda state, given: lax.scan(_adam, state, given))


def trained(
    begin: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    known: np.ndarray,
    *,
    batches: int,
    seed: int,
    rate: float = RATE,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Train for ``batches`` batches (up to the next multiple of `CALL`); return the parameters and the loss of each batch.

    Windows x have shape (n, length, columns), targets y and ``known`` (1 where observed) (n, length), n at least 1.
    The rate rises for a tenth of the batches and falls to 0 as a cosine.
    """
    rng = np.random.default_rng(seed)
    calls = -(-batches // CALL)
    done = np.arange(calls * CALL) / (calls * CALL)
    rates = (rate * np.minimum(done / 0.1, 1.0) * 0.5 * (1 + np.cos(np.pi * done))).astype(np.float32)
    p = {name: jnp.asarray(value) for name, value in begin.items()}
    zero = jax.tree.map(jnp.zeros_like, p)
    state = (p, zero, zero, jnp.float32(0.0))
    key, losses = jax.random.key(seed), []
    for call in range(calls):
        pick = rng.integers(0, x.shape[0], (CALL, BATCH))
        keys = jax.random.split(jax.random.fold_in(key, call), CALL)
        rate_now = rates[call * CALL : (call + 1) * CALL]
        state, lost = _training()(state, (keys, rate_now, x[pick], y[pick], known[pick]))
        losses.append(np.asarray(lost))
    return {name: np.asarray(value) for name, value in state[0].items()}, np.concatenate(losses)


# ---
# Prediction.


def _draw(clean: bool, p: Params, noise: tuple[Any, Any, Any], x: Any) -> Any:
    """Return paths (`DRAWS`, length) of a window."""
    top, bottom, last = noise
    windows = jnp.broadcast_to(x, (DRAWS, *x.shape))
    mean, log, _ = _forward(p, windows, top, bottom)
    paths = mean + jnp.exp(log) * last
    return _cleaned(p, paths, windows[:, 0, -2:]) if clean else paths


@cache
def _prediction(clean: bool) -> Any:
    # Windows are processed sequentially, so the draws of a window cannot depend on the number of windows.
    return jax.jit(lambda p, noise, x: lax.map(partial(_draw, clean, p, noise), x))


def draw_paths(p: Mapping[str, np.ndarray], x: np.ndarray, *, seed: int, clean: bool = True) -> np.ndarray:
    """Return paths (n, `DRAWS`, length) of windows x (n, length, columns); every window uses the same random numbers.

    Without ``clean`` the paths are the raw draws of the autoencoder.
    """
    rng = np.random.default_rng(seed)
    length = x.shape[1]
    shapes = ((length // 4, LATENT), (length // 2, LATENT), (length,))
    half = [rng.normal(size=(DRAWS // 2, *shape)).astype(np.float32) for shape in shapes]
    noise = tuple(np.concatenate([one, -one]) for one in half)
    params = {name: jnp.asarray(value) for name, value in p.items()}
    out = np.empty((x.shape[0], DRAWS, length), dtype=np.float32)
    for begin in range(0, x.shape[0], ORIGINS):
        part = x[begin : begin + ORIGINS]
        padded = np.zeros((ORIGINS, *x.shape[1:]), dtype=np.float32)
        padded[: len(part)] = part
        out[begin : begin + ORIGINS] = np.asarray(_prediction(clean)(params, noise, padded))[: len(part)]
    return out
