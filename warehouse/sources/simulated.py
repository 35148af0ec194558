"""The simulated market: seeded sample paths as a source, for a first turn without any data (ours).

All parameters are measured (``warehouse/sources/data/simulated.toml``, written by
``benchmarks/calibrate_simulated.py``).

Availability: a *regime* (scarce, mixed, plentiful) lasts for a window of 6 h and then changes by a
Markov chain. Within a regime the count moves at each tick between *classes* (none, few, many, full)
by a transition matrix of the regime and the part of the day. A count that stays in its class
remains unchanged with the measured probability; otherwise a new count is drawn from the class.

Prices: a hidden log price changes at the measured rate, x' = m + phi (x - m) + e, with e drawn from
measured quantiles (including occasional jumps). The price is exp(x), clipped to [floor, on-demand]
and rounded to 0.0001 USD.

Time is divided into blocks of 28 days counted from 1970-01-01. Each block has a separate random stream,
seeded by (seed, market, block), and starts from the stationary distribution. Hence any two ranges agree where
they overlap; the drawback is that a path forgets its past at the start of a block.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import Field

from slackwater.warehouse.documents import read_data
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.sources.contract import Batch, Moment, Options, batch_of, label_option
from slackwater.warehouse.sources.files.reading import FileSource

#: Used for the simulated market where a file path is required.
PSEUDO_PATH = Path("simulated:")
DEFAULT_SEED = 7
DEFAULT_STEP_MINUTES = 30
_DAY_MINUTES = 1440
_PRODUCT = "Linux/UNIX"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BLOCK = timedelta(days=28)
_REGIMES = ("scarce", "mixed", "plentiful")
_HOURS_PER_DAY = 24
_DECIMALS = 4

Cumulative = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMarket:
    """A market of the simulated source with its measured parameters."""

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
        """Time between two moves of the count: the sampling interval of the measured history."""
        return timedelta(minutes=int(self.counts["tick_minutes"]))

    @property
    def capacity(self) -> int | None:
        """Largest count that a probe could see, None if the history lists offers."""
        return int(self.counts["full"]) if self.counts["capacity_stated"] else None


@cache
def simulated_markets() -> tuple[SimulatedMarket, ...]:
    """Return the markets of ``warehouse/sources/data/simulated.toml``."""
    content = read_data(__package__, "simulated")
    return tuple(
        SimulatedMarket(window_minutes=int(content["window_minutes"]), **entry) for entry in content["market"]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePath:
    """Count and price (USD per instance-hour) of a market at every tick of a block, shape (ticks,)."""

    start: datetime
    counts: np.ndarray
    prices: np.ndarray


def block_of(at: datetime) -> int:
    """Return the number of the block that contains a time."""
    return (at - EPOCH) // BLOCK


@cache
def _name(key: str) -> int:
    return zlib.crc32(key.encode())


def sample_path(market: SimulatedMarket, block: int, *, seed: int) -> SamplePath:
    """Return the path of a market over a block; equal arguments give equal paths."""
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
    """Return the stationary distribution of a transition matrix, reached from a uniform start and averaged over cycles."""
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
        # Blocks start at midnight, so the tick determines the hour.
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


def generate(
    start: datetime,
    end: datetime,
    *,
    seed: int,
    step_minutes: int = DEFAULT_STEP_MINUTES,
    label: str | None = None,
) -> Iterator[Batch]:
    """Yield observations of every simulated market, from midnight of ``start`` to ``end`` (included), every ``step_minutes``.

    Counts are given at every step; prices at changes and at every midnight, as in AWS's price history. Times
    are UTC, have a real time of day, and are known when observed. Rows depend only on (seed, market, time,
    step): a longer or later range extends or repeats an earlier range and never changes it, so a later run
    adds only new rows. A batch covers a single market and at most 28 days. ``label`` is the source label, by
    default ``simulated:<seed>``. A flow appends them without a file::

        append(store, generate(at - days, at, seed=7), source="simulated", assumptions=said(7))

    Raises `SettingsError` for times without a zone or before 1970, an end before the start, a step
    that does not divide a day, or a negative seed.
    """
    if start.tzinfo is None or end.tzinfo is None or not EPOCH <= start <= end:
        raise SettingsError(
            f"simulated range {start} to {end}", expected="UTC times from 1970 on, start before end"
        )
    if not 1 <= step_minutes <= _DAY_MINUTES or _DAY_MINUTES % step_minutes:
        raise SettingsError(
            f"step of {step_minutes} minutes", expected="a divisor of 1440, such as 5, 10, 30 or 60"
        )
    if seed < 0:
        raise SettingsError(f"seed {seed}", expected="a whole number of at least 0")
    # From midnight on, where every price is stated, so that no row depends on the start of the range.
    first = EPOCH + (start - EPOCH) // timedelta(days=1) * timedelta(days=1)
    step = timedelta(minutes=step_minutes)
    name = label or f"simulated:{seed}"
    return _batches(first, end, step, seed, name)


@lru_cache(maxsize=128)
def _path(place: int, block: int, seed: int) -> SamplePath:
    """Return the path of the market at this index of `simulated_markets`; cached, as successive turns use the same paths."""
    return sample_path(simulated_markets()[place], block, seed=seed)


def _batches(first: datetime, end: datetime, step: timedelta, seed: int, label: str) -> Iterator[Batch]:
    for place, market in enumerate(simulated_markets()):
        line = 1
        for block in range(block_of(first), block_of(end) + 1):
            start = EPOCH + block * BLOCK
            begin, stop = max(first, start), min(end, start + BLOCK - step)
            rows = (stop - begin) // step + 1
            for batch in _block_batches(market, _path(place, block, seed), begin=begin, rows=rows, step=step):
                yield _with_labels(batch, label, line)
                line += batch.table.num_rows


def _with_labels(batch: Batch, label: str, line: int) -> Batch:
    rows = batch.table.num_rows
    columns: dict[str, Any] = {name: batch.table[name] for name in batch.table.column_names}
    columns |= {"source": label, "file": str(PSEUDO_PATH), "line": pa.array(np.arange(line, line + rows))}
    return batch_of(batch.kind, rows, columns)


def _block_batches(
    market: SimulatedMarket, path: SamplePath, *, begin: datetime, rows: int, step: timedelta
) -> Iterator[Batch]:
    every = np.timedelta64(step) * np.arange(rows)
    ticks = (every + np.timedelta64(begin - path.start)) // np.timedelta64(market.tick)
    times = np.datetime64(begin.replace(tzinfo=None), "us") + every
    place = {
        "provider": "simulated",
        "region": market.region,
        "zone": market.zone,
        "instance_type": market.instance_type,
    }
    at = _utc(times)
    yield batch_of(
        "availability",
        rows,
        {
            **place,
            "observed_at": at,
            "known_at": at,
            "available": pa.array(path.counts[ticks]),
            "capacity": market.capacity,
            "gap_seconds": int(step.total_seconds()),
            "kind": "offers" if market.capacity is None else "probe",
            "truncated": False,
        },
    )
    prices = path.prices[ticks]
    changed = np.r_[True, prices[1:] != prices[:-1]]
    stated = changed | (times.astype("datetime64[D]") == times)
    at = _utc(times[stated])
    yield batch_of(
        "price",
        int(stated.sum()),
        {
            **place,
            "product": _PRODUCT,
            "observed_at": at,
            "known_at": at,
            "price_usd": pa.array(prices[stated]),
            "on_demand_usd": market.on_demand_usd,
        },
    )


def _utc(times: np.ndarray) -> pa.Array:
    return pa.array(times.astype("datetime64[us]"), pa.timestamp("us")).cast(pa.timestamp("us", tz="UTC"))


def simulation_note(seed: int) -> tuple[str, ...]:
    """Return the note shown with all results computed from this market."""
    return (f"simulated market (seed {seed}), calibrated to open histories, not measured",)


class SimulatedOptions(Options):
    """Range and seed of the sample paths."""

    start: Moment = Field(None, description="first time, ISO 8601 (its midnight is taken)")
    end: Moment = Field(None, description="last time, ISO 8601")
    seed: int = Field(DEFAULT_SEED, ge=0, description=f"seed of the sample paths (default: {DEFAULT_SEED})")
    step_minutes: int = Field(
        DEFAULT_STEP_MINUTES,
        ge=0,
        description=f"minutes between observations, a divisor of 1440 (default: {DEFAULT_STEP_MINUTES})",
    )
    source: str | None = label_option(None, "simulated:<seed>")


class SimulatedSource(FileSource[SimulatedOptions]):
    """The simulated market as a source: pseudo-path ``simulated:`` instead of a file, time range in the options.

    As there is no file to open or hash, a flow passes the batches of `generate` to the warehouse's ``append``
    instead of ingesting a path.
    """

    name = "simulated"
    form = SimulatedOptions
    has_files = False
    expected = "no path"
    remedy = "leave the path out"
    examples: Mapping[str, str] = {}

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """Return the pseudo-path; raises `SourceFileError` for any other path."""
        for path in paths:
            if path != PSEUDO_PATH:
                raise self.wrong(path, 0, "the simulated market reads no files")
        return [PSEUDO_PATH]

    def recognised(self, path: Path) -> bool:
        """Return False: no file has this format."""
        return False

    def batches(self, path: Path, options: SimulatedOptions) -> Iterator[Batch]:
        """Return the batches of `generate`; raises `SettingsError` without a range."""
        self.files([path])
        if options.start is None or options.end is None:
            raise SettingsError("the simulated market without a range", expected="the options start and end")
        return generate(
            options.start,
            options.end,
            seed=options.seed,
            step_minutes=options.step_minutes,
            label=options.source,
        )

    def assumed(self, path: Path, options: SimulatedOptions) -> tuple[str, ...]:
        """Return the note that the market is simulated, not measured."""
        return simulation_note(options.seed)
