"""Derive the parameters of the simulated market from the open histories and write ``warehouse/sources/data/simulated.toml``.

Run as ``SLACKWATER_DATA=... python -m benchmarks.calibrate_simulated``; the same data give the same file, byte by byte. The
parameters and their use by the generator are documented in `slackwater.warehouse.sources.simulated`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "warehouse" / "sources" / "data" / "simulated.toml"
H100 = "andylizf/skynomad-artifact:h100"
V100_COUNTS = "skypilot-org/spot-traces:availability/16-node/aws-08-27-2023"
V100_PRICES = "andylizf/skynomad-artifact:v100"
OFFERS = "tugot17/gpu-price-tracker"
WINDOW_MINUTES = 360
BANDS = 4
REGIMES = 3
#: Pseudo-observations that shrink the hours of a zone to the zone, and a zone to all zones of its kind.
BAND_WEIGHT, ZONE_WEIGHT = 30.0, 2.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Zones with the same instance type and probe; sparse data of a zone are supplemented from all zones."""

    tick_minutes: int
    edges: tuple[int, ...]
    capacity: int | None
    clock: bool
    thresholds: tuple[float, float]
    zones: dict[str, pd.Series]


@dataclass(frozen=True, kw_only=True)
class Market:
    """Simulated market with the measured series it is estimated from."""

    region: str
    zone: str
    instance_type: str
    kind: Kind
    count_zone: str
    count_source: str
    prices: pd.Series
    price_source: str
    on_demand_usd: float
    floor_usd: float


def read(data: Path, table: str, source: str) -> pd.DataFrame:
    frame = pq.read_table(data / f"{table}.parquet", filters=[("source", "=", source)]).to_pandas()
    frame["timestamp"] = pd.to_datetime(frame["timestamp"], utc=True)
    return frame.sort_values("timestamp", kind="stable")


def series(frame: pd.DataFrame, column: str, **where: str) -> pd.Series:
    for name, value in where.items():
        frame = frame[frame[name] == value]
    return frame.set_index("timestamp")[column]


def sample_and_hold(values: pd.Series, minutes: int) -> pd.Series:
    """Resample values on a regular grid, sample and hold (M1.3)."""
    grid = pd.date_range(values.index[0].ceil(f"{minutes}min"), values.index[-1], freq=f"{minutes}min")
    return values[~values.index.duplicated(keep="last")].reindex(grid, method="ffill")


def normalised(counts: np.ndarray, fallback: np.ndarray) -> np.ndarray:
    total = counts.sum(axis=-1, keepdims=True)
    return np.where(total > 0, counts / np.where(total > 0, total, 1), fallback)


def labels(kind: Kind, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the class of every sample and the regime of every window: scarce, mixed or plentiful by the mean of the window."""
    per_window = WINDOW_MINUTES // kind.tick_minutes
    windows = len(values) // per_window
    means = values[: windows * per_window].reshape(windows, per_window).mean(axis=1)
    regimes = np.searchsorted(kind.thresholds, means, side="right")
    return np.searchsorted(kind.edges, values, side="right") - 1, regimes


def class_moves(kind: Kind, counts: pd.Series) -> np.ndarray:
    """Count transitions between classes, shape (regimes, bands, classes, classes)."""
    classes, regimes = labels(kind, counts.to_numpy())
    per_window = WINDOW_MINUTES // kind.tick_minutes
    n = len(kind.edges)
    moves = np.zeros((REGIMES, BANDS, n, n))
    hours = counts.index.hour.to_numpy() // (24 // BANDS) if kind.clock else np.zeros(len(counts), dtype=int)
    last = len(regimes) * per_window
    for i in range(1, last):
        moves[regimes[i // per_window], hours[i], classes[i - 1], classes[i]] += 1
    return moves if kind.clock else np.repeat(moves.sum(axis=1, keepdims=True), BANDS, axis=1)


def transitions(kind: Kind, zone: str) -> np.ndarray:
    """Estimate P(next class | regime, band, class), shrunk to the zone, and the zone to all zones of the kind."""
    n = len(kind.edges)
    pooled = normalised(sum(class_moves(kind, s).sum(axis=1) for s in kind.zones.values()), np.eye(n))
    own = class_moves(kind, kind.zones[zone])
    by_regime = normalised(own.sum(axis=1) + ZONE_WEIGHT * pooled, np.eye(n))
    return normalised(own + BAND_WEIGHT * by_regime[:, None], np.eye(n))


def switching(kind: Kind, zone: str) -> np.ndarray:
    """Estimate P(next regime | regime) per window; with the last window followed by the first, long-run shares are as measured."""
    _, regimes = labels(kind, kind.zones[zone].to_numpy())
    moves = np.zeros((REGIMES, REGIMES))
    for a, b in zip(regimes, np.roll(regimes, -1), strict=True):
        moves[a, b] += 1
    return normalised(moves, np.bincount(regimes, minlength=REGIMES) / len(regimes))


def within(kind: Kind, zone: str) -> tuple[list[float], list[list[float]]]:
    """Estimate, per class, P(count stays | class stays) and the frequency of each count among new counts."""
    values = kind.zones[zone].to_numpy()
    top = kind.capacity if kind.capacity is not None else int(values.max())
    classes, _ = labels(kind, values)
    ends = [*kind.edges[1:], top + 1]
    keep, weights = [], []
    for c, (low, high) in enumerate(zip(kind.edges, ends, strict=True)):
        stay = (classes[:-1] == c) & (classes[1:] == c)
        same = stay & (values[:-1] == values[1:])
        keep.append(same.sum() / stay.sum() if stay.any() else 1.0)
        new = values[1:][(classes[1:] == c) & ~same]
        found = np.bincount((new if len(new) else np.array([low])) - low, minlength=high - low)
        weights.append((found / found.sum()).tolist())
    return keep, weights


def runs(mask: np.ndarray, marks: np.ndarray) -> float:
    """Return the mean length, in samples, of the runs of equal marks that start in the mask."""
    starts = np.flatnonzero(np.r_[True, marks[1:] != marks[:-1]])
    chosen = mask[starts]
    lengths = np.diff(np.r_[starts, len(marks)])
    return float(lengths[chosen].mean()) if chosen.any() else 0.0


def measured_counts(values: np.ndarray, tick_minutes: int, full: int) -> dict[str, float]:
    everything = np.ones(len(values), dtype=bool)
    return {
        "mean": float(values.mean()),
        "share_zero": float((values == 0).mean()),
        "share_full": float((values == full).mean()),
        "mean_stay_minutes": runs(everything, values) * tick_minutes,
        "stay_at_zero_minutes": runs(values == 0, values) * tick_minutes,
        "stay_at_full_minutes": runs(values == full, values) * tick_minutes,
    }


def measured_prices(prices: pd.Series) -> dict[str, float]:
    """Return time-weighted mean and coefficient of variation, and changes per day, of prices stored on change."""
    hours = np.diff(prices.index.to_numpy()).astype("timedelta64[s]").astype(float) / 3600
    values = prices.to_numpy()
    mean = float(np.average(values[:-1], weights=hours))
    deviation = float(np.sqrt(np.average((values[:-1] - mean) ** 2, weights=hours)))
    changes = int((values[1:] != values[:-1]).sum())
    return {"mean_usd": mean, "cv": deviation / mean, "changes_per_day": changes / (hours.sum() / 24)}


def clipped_normal(mean: float, cv: float, low: float, high: float) -> tuple[float, float, float]:
    """Return (m, s, share above low) of a log price N(m, s^2) whose price, clipped to [low, high], has this mean and cv."""
    z = np.array([NormalDist().inv_cdf((i + 0.5) / 4001) for i in range(4001)])
    m, s = np.log(mean), cv
    for _ in range(2000):
        prices = np.clip(np.exp(m + s * z), low, high)
        m += 0.5 * np.log(mean / prices.mean())
        s *= (cv * prices.mean() / prices.std()) ** 0.25
    return float(m), float(s), float((prices > low).mean())


def price_model(market: Market) -> dict[str, object]:
    """Fit a constant price, or a latent walk x' = m + phi (x - m) + e of log prices, observed clipped to [floor, on-demand].

    m and s = sd(x) give the measured mean and cv. The rate per day is that of observed changes divided by the share of prices
    above the floor, where changes are visible; phi = r^(1/rate) gives the measured correlation r over 24 hours. Steps have
    the measured distribution, scaled to s.
    """
    measured = measured_prices(market.prices) if len(market.prices) > 1 else None
    if measured is None or measured["changes_per_day"] == 0:
        mean = float(market.prices.iloc[0])
        flat = {"mean_usd": mean, "cv": 0.0, "changes_per_day": 0.0}
        return {"log_mean": np.log(mean), "persistence": 1.0, "rate": 0.0, "residuals": [], "measured": flat}
    mean, deviation, above = clipped_normal(
        measured["mean_usd"], measured["cv"], market.floor_usd, market.on_demand_usd
    )
    rate = measured["changes_per_day"] / above
    hourly = np.log(sample_and_hold(market.prices, 60).to_numpy())
    daily = float(np.corrcoef(hourly[24:], hourly[:-24])[0, 1])
    phi = float(np.clip(daily, 0.01, 0.99) ** (1 / rate))
    logs = np.log(market.prices.to_numpy())
    residuals = (logs[1:] - mean - phi * (logs[:-1] - mean))[np.diff(logs) != 0]
    spread = np.sqrt(1 - phi**2) * deviation / residuals.std()
    quantiles = np.quantile((residuals - residuals.mean()) * spread, np.linspace(0, 1, 41))
    return {
        "log_mean": mean,
        "persistence": phi,
        "rate": rate,
        "residuals": quantiles.tolist(),
        "measured": measured,
    }


def kinds(data: Path) -> tuple[Kind, Kind, Kind]:
    counts = read(data, "availability", H100)
    h100 = Kind(
        tick_minutes=10,
        edges=(0, 1, 9, 16),
        capacity=16,
        clock=True,
        thresholds=(16 / 3, 32 / 3),
        zones={
            z: sample_and_hold(series(counts, "available", zone=z), 10)
            for z in sorted(counts["zone"].unique())
        },
    )
    counts = read(data, "availability", V100_COUNTS)
    v100 = Kind(
        tick_minutes=5,
        edges=(0, 1, 9, 16),
        capacity=16,
        clock=False,
        thresholds=(16 / 3, 32 / 3),
        zones={
            z: sample_and_hold(series(counts, "available", zone=z), 5)
            for z in sorted(counts["zone"].unique())
        },
    )
    counts = read(data, "availability", OFFERS)
    listed = sample_and_hold(series(counts, "available", zone="all", instance_type="A100_80GB_SXM4"), 30)
    low, middle, high = (int(q) for q in np.quantile(listed, (0.25, 0.5, 0.75)))
    thirds = np.quantile(listed.rolling(WINDOW_MINUTES // 30).mean().dropna(), (1 / 3, 2 / 3))
    offers = Kind(
        tick_minutes=30,
        edges=(int(listed.min()), low, middle, high),
        capacity=None,
        clock=True,
        thresholds=(float(thirds[0]), float(thirds[1])),
        zones={"all": listed},
    )
    return h100, v100, offers


def markets(data: Path) -> list[Market]:
    h100, v100, offers = kinds(data)
    catalogue, moving, listed = (read(data, "prices", s) for s in (H100, V100_PRICES, OFFERS))
    found = []
    for region, zone, origin in (
        ("east", "east-a", "us-east4-a"),
        ("east", "east-b", "us-east5-a"),
        ("west", "west-a", "us-west1-a"),
    ):
        prices = series(catalogue, "spot_price_usd_per_hour", zone=origin)
        on_demand = float(series(catalogue, "on_demand_price_usd_per_hour", zone=origin).iloc[0])
        found.append(
            Market(
                region=region,
                zone=zone,
                instance_type="h100",
                kind=h100,
                count_zone=origin,
                count_source=f"{H100} {origin}",
                prices=prices,
                price_source=f"{H100} {origin} (catalogue)",
                on_demand_usd=on_demand,
                floor_usd=0.0,
            )
        )
    for region, zone, origin, priced in (
        ("west", "west-a", "us-west-2a", "us-west-2a"),
        ("west", "west-b", "us-west-2c", "us-west-2c"),
        ("east", "east-a", "us-west-2c", "us-east-1f"),
    ):
        prices = series(moving, "spot_price_usd_per_hour", zone=priced)
        found.append(
            Market(
                region=region,
                zone=zone,
                instance_type="v100",
                kind=v100,
                count_zone=origin,
                count_source=f"{V100_COUNTS} {origin}",
                prices=prices,
                price_source=f"{V100_PRICES} {priced}",
                on_demand_usd=3.06,
                floor_usd=0.918,
            )
        )
    product = "per GPU, median over offers"
    prices = series(
        listed, "spot_price_usd_per_hour", zone="all", instance_type="A100_80GB_SXM4", product=product
    )
    found.append(
        Market(
            region="global",
            zone="marketplace",
            instance_type="a100",
            kind=offers,
            count_zone="all",
            count_source=f"{OFFERS} A100_80GB_SXM4",
            prices=prices,
            price_source=f"{OFFERS} A100_80GB_SXM4, {product}",
            on_demand_usd=float(prices.max()),
            floor_usd=0.3 * float(prices.max()),
        )
    )
    return found


def number(value: float) -> str:
    return f"{float(value):.5g}" if float(value) != int(value) else str(int(value))


def array(values: object) -> str:
    if isinstance(values, np.ndarray | list | tuple):
        return "[" + ", ".join(array(v) for v in values) + "]"
    return number(values)  # type: ignore[arg-type]


def period(values: pd.Series) -> str:
    return f"{values.index[0]:%Y-%m-%d} to {values.index[-1]:%Y-%m-%d}"


def market_text(market: Market) -> str:
    kind, counts = market.kind, market.kind.zones[market.count_zone]
    values = counts.to_numpy()
    full = kind.capacity if kind.capacity is not None else int(values.max())
    keep, weights = within(kind, market.count_zone)
    price = price_model(market)
    lines = [
        "[[market]]",
        f'region = "{market.region}"',
        f'zone = "{market.zone}"',
        f'instance_type = "{market.instance_type}"',
        f"on_demand_usd = {number(market.on_demand_usd)}",
        "",
        "[market.counts]",
        f'source = "{market.count_source}"',
        f'date = "{period(counts)}"',
        f"tick_minutes = {kind.tick_minutes}",
        f"full = {full}",
        f"capacity_stated = {str(kind.capacity is not None).lower()}",
        f"lowest = {array(kind.edges)}",
        f"switching = {array(switching(kind, market.count_zone))}",
        f"keep = {array(keep)}",
        f"weights = {array(weights)}",
    ]
    for name, table in zip(
        ("scarce", "mixed", "plentiful"), transitions(kind, market.count_zone), strict=True
    ):
        bands = table if kind.clock else table[:1]
        lines += [f"{name} = [", *(f"    {array(band)}," for band in bands), "]"]
    lines += ["", "[market.counts.measured]"]
    lines += [f"{k} = {number(v)}" for k, v in measured_counts(values, kind.tick_minutes, full).items()]
    lines += [
        "",
        "[market.price]",
        f'source = "{market.price_source}"',
        f'date = "{period(market.prices)}"',
        f"floor_usd = {number(market.floor_usd)}",
        f"log_mean = {number(price['log_mean'])}",
        f"persistence = {number(price['persistence'])}",
        f"rate_per_day = {number(price['rate'])}",
        f"residuals = {array(price['residuals'])}",
        "",
        "[market.price.measured]",
        *(f"{k} = {number(v)}" for k, v in price["measured"].items()),
    ]
    return "\n".join(lines) + "\n"


HEADER = """\
# Parameters of the simulated market, estimated from open histories by `python -m benchmarks.calibrate_simulated`.
# Every section names the series it comes from and its dates; `measured` holds what simulated paths are tested against.
# Market by market: switching = P(next regime | regime) from one window to the next; scarce, mixed, plentiful =
# P(next class | class) per tick, for each quarter of the day (UTC) or for all of it where the history has no clock; `lowest` =
# lowest count of each class; keep = P(count stays | class stays); weights = how often each count of a class is the new one.
# Prices: a hidden log price steps x' = log_mean + persistence (x - log_mean) + e, rate_per_day times a day, with e drawn from the
# quantiles `residuals`; the price is exp(x) kept between floor and on-demand.
"""


def text(data: Path) -> str:
    body = "\n".join(market_text(market) for market in markets(data))
    return f"{HEADER}window_minutes = {WINDOW_MINUTES}\n\n{body}"


def main() -> int:
    data = Path(os.environ.get("SLACKWATER_DATA", ROOT.parent / "shared" / "data"))
    if not (data / "availability.parquet").exists():
        print(
            f"no availability.parquet in {data}: set SLACKWATER_DATA to the folder of the open data",
            file=sys.stderr,
        )
        return 2
    TARGET.write_text(text(data), encoding="utf-8")
    print(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
