"""Sample paths of the simulated market: counts from regime-switching Markov chains, sticky prices (ours).

All parameters are measured (``warehouse/data/simulated.toml``, written by ``benchmarks/calibrate_simulated.py``).

Counts: a *regime* (scarce, mixed, plentiful) holds for a window of 6 h and then moves by its own Markov chain. Inside it the
count moves once a tick between *classes* (none, few, many, full) by a matrix of the regime and of the quarter of the day. A
count that stays in its class stays as it is with the measured probability, else a new one is drawn from the class.

Prices: a hidden log price changes at the measured rate, x' = m + phi (x - m) + e with e from measured quantiles (so with their
occasional jumps). The price is exp(x), kept between floor and on-demand and rounded to 0.0001 USD.

Time is cut into blocks of 28 days counted from 1970-01-01. Each block has its own random stream, of (seed, market, block),
and starts from the long-run distribution. So any two ranges agree where they overlap, whatever their start and end; the price
of it is that a path forgets its past at the start of a block.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np

from warehouse.sources.files.places import data_file

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BLOCK = timedelta(days=28)
_REGIMES = ("scarce", "mixed", "plentiful")
_HOURS_PER_DAY = 24
_DECIMALS = 4

Cumulative = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMarket:
    """One market of the simulated source, with its measured parameters."""

    region: str
    zone: str
    instance_type: str
    on_demand_usd: float
    counts: Mapping[str, Any]
    price: Mapping[str, Any]
    window_minutes: int

    @property
    def key(self) -> str:
        """``region/zone/instance_type``."""
        return f"{self.region}/{self.zone}/{self.instance_type}"

    @property
    def tick(self) -> timedelta:
        """Time between two moves of the count: the gap of the history it was measured on."""
        return timedelta(minutes=int(self.counts["tick_minutes"]))

    @property
    def capacity(self) -> int | None:
        """Largest count a probe could see, None where offers are listed."""
        return int(self.counts["full"]) if self.counts["capacity_stated"] else None


@cache
def simulated_markets() -> tuple[SimulatedMarket, ...]:
    """The markets of ``warehouse/data/simulated.toml``."""
    content = data_file("simulated.toml")
    return tuple(
        SimulatedMarket(window_minutes=int(content["window_minutes"]), **entry) for entry in content["market"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePath:
    """Count and price (USD per instance-hour) of one market at every tick of one block, shape (ticks,)."""

    start: datetime
    counts: np.ndarray
    prices: np.ndarray


def block_of(at: datetime) -> int:
    """Number of the block a time lies in."""
    return (at - EPOCH) // BLOCK


@cache
def _name(key: str) -> int:
    return zlib.crc32(key.encode())


def sample_path(market: SimulatedMarket, block: int, *, seed: int) -> SamplePath:
    """The path of one market over one block; the same arguments give the same path."""
    counts, prices = (
        np.random.default_rng([seed, _name(market.key), block, variable]) for variable in range(2)
    )
    ticks = BLOCK // market.tick
    return SamplePath(
        start=EPOCH + block * BLOCK,
        counts=_counts(market, ticks, counts),
        prices=_prices(market, ticks, prices),
    )


def _cumulative(weights: Sequence[float]) -> Cumulative:
    total = sum(weights)
    return tuple(accumulate(w / total for w in weights))


def _draw(cumulative: Cumulative, u: float) -> int:
    return min(bisect_right(cumulative, u), len(cumulative) - 1)


def _long_run(matrix: Sequence[Sequence[float]]) -> list[float]:
    """Stationary distribution of a transition matrix, averaged over cycles, from an even start."""
    p = np.asarray(matrix, dtype=float)
    p = p / p.sum(axis=1, keepdims=True)
    # The lazy chain has the same stationary distribution and no cycles.
    share = np.full(len(p), 1 / len(p)) @ np.linalg.matrix_power((p + np.eye(len(p))) / 2, 4096)
    return [float(s) for s in share]


def _regimes(market: SimulatedMarket, windows: int, rng: np.random.Generator) -> list[int]:
    switching = market.counts["switching"]
    rows = [_cumulative(row) for row in switching]
    uniform = rng.random(windows).tolist()
    regime = _draw(_cumulative(_long_run(switching)), uniform[0])
    found = [regime]
    for u in uniform[1:]:
        regime = _draw(rows[regime], u)
        found.append(regime)
    return found


def _counts(market: SimulatedMarket, ticks: int, rng: np.random.Generator) -> np.ndarray:
    counts = market.counts
    minutes = int(counts["tick_minutes"])
    per_window = market.window_minutes // minutes
    regimes = _regimes(market, -(-ticks // per_window), rng)
    rows = [[[_cumulative(row) for row in band] for band in counts[name]] for name in _REGIMES]
    news = [_cumulative(weights) for weights in counts["weights"]]
    lowest, keep = counts["lowest"], counts["keep"]
    move, stay, new = (rng.random(ticks).tolist() for _ in range(3))
    kind = _draw(_cumulative(_long_run(counts[_REGIMES[regimes[0]]][0])), float(rng.random()))
    value = lowest[kind] + _draw(news[kind], float(rng.random()))
    found = np.empty(ticks, dtype=np.int64)
    for i in range(ticks):
        bands = rows[regimes[i // per_window]]
        # Blocks start at midnight, so the tick tells the hour.
        hour = i * minutes // 60 % _HOURS_PER_DAY
        now = _draw(bands[hour * len(bands) // _HOURS_PER_DAY][kind], move[i])
        if now != kind or stay[i] >= keep[kind]:
            value = lowest[now] + _draw(news[now], new[i])
        kind = now
        found[i] = value
    return found


def _prices(market: SimulatedMarket, ticks: int, rng: np.random.Generator) -> np.ndarray:
    price = market.price
    mean, phi = float(price["log_mean"]), float(price["persistence"])
    if not price["residuals"]:
        return np.full(ticks, round(float(np.exp(mean)), _DECIMALS))
    rate = float(price["rate_per_day"]) * (market.tick / timedelta(days=1))
    quantiles = np.asarray(price["residuals"], dtype=float)
    levels = np.linspace(0, 1, len(quantiles))
    x = mean + float(np.sqrt(np.var(quantiles) / (1 - phi**2))) * float(rng.standard_normal())
    changes = np.flatnonzero(rng.random(ticks) < rate)
    steps = np.interp(rng.random(len(changes)), levels, quantiles)
    logs = np.full(ticks, x)
    for at, step in zip(changes.tolist(), steps.tolist(), strict=True):
        x = mean + phi * (x - mean) + step
        logs[at:] = x
    shown: np.ndarray = np.clip(np.exp(logs), float(price["floor_usd"]), market.on_demand_usd)
    return np.round(shown, _DECIMALS)
