"""A small folder of tidy tables: three count series of one kind, one of another, and price paths of two sources."""

from pathlib import Path

import numpy as np
import pandas as pd

DAYS = 8
START = pd.Timestamp("2025-03-03T00:05:00Z")


def write_tidy(folder: Path, *, seed: int = 3, days: float = DAYS, spell: int = 12) -> Path:
    """Write the tables; counts last ``spell`` reads of ten minutes on average."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    counts = [
        _counts(rng, zone, "a3-highgpu-1g", capacity=16, source="lab:counts", days=days, spell=spell)
        for zone in ("z1", "z2", "z3")
    ]
    counts.append(_counts(rng, "z9", "p3.2xlarge", capacity=4, source="lab:small", days=days, spell=spell))
    prices = [
        _prices(rng, "z1", "a3-highgpu-1g", source="lab:counts", on_demand=4.0, moves=True, days=days),
        _prices(rng, "y1", "g5.xlarge", source="lab:prices", on_demand=1.0, moves=True, days=days),
        _prices(rng, "y2", "g5.xlarge", source="lab:prices", on_demand=1.0, moves=False, days=days),
        _prices(rng, "y3", "g6.xlarge", source="lab:prices", on_demand=np.nan, moves=True, days=days),
    ]
    pd.concat(counts, ignore_index=True).to_parquet(folder / "availability.parquet")
    pd.concat(prices, ignore_index=True).to_parquet(folder / "prices.parquet")
    return folder


def write_counts(folder: Path, region, zone, instance_type, times, counts, *, source) -> None:
    """Write a table of counts of a market, read every ten minutes."""
    folder.mkdir(parents=True, exist_ok=True)
    _count_rows(
        region, zone, instance_type, times, counts, capacity=int(counts.max()), source=source
    ).to_parquet(folder / f"availability-{zone}.parquet")


def write_prices(folder: Path, region, zone, instance_type, times, spot, on_demand, *, source) -> None:
    """Write a table of prices of a market."""
    folder.mkdir(parents=True, exist_ok=True)
    _price_rows(region, zone, instance_type, times, spot, on_demand, source=source).to_parquet(
        folder / f"prices-{zone}.parquet"
    )


def _counts(rng, zone, instance_type, *, capacity, source, days, spell) -> pd.DataFrame:
    times = pd.date_range(START, periods=int(days * 144), freq="10min")
    # A third of the time zero, otherwise anywhere up to the capacity.
    spells = np.where(rng.random(len(times)) < 0.35, 0, rng.integers(1, capacity + 1, len(times)))
    moves = np.flatnonzero(rng.random(len(times)) < 1 / spell)
    level = spells[np.concatenate([[0], moves])[np.searchsorted(moves, np.arange(len(times)), side="right")]]
    return _count_rows("r1", zone, instance_type, times, level, capacity=capacity, source=source)


def _count_rows(region, zone, instance_type, times, level, *, capacity, source) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "provider": "lab",
            "region": region,
            "zone": zone,
            "instance_type": instance_type,
            "timestamp": times,
            "available": pd.array(level, dtype="Int32"),
            "capacity_probed": pd.array([capacity] * len(times), dtype="Int32"),
            "gap_seconds": pd.array([600] * len(times), dtype="Int32"),
            "kind": "probe",
            "truncated": False,
            "source": source,
        }
    )


def _prices(rng, zone, instance_type, *, source, on_demand, moves, days) -> pd.DataFrame:
    times = pd.date_range(START, periods=int(days * 4), freq="6h")
    base = 1.0 if np.isnan(on_demand) else on_demand
    walk = 0.35 + (0.2 * np.sin(np.arange(len(times)) / 3) + 0.1 * rng.random(len(times)) if moves else 0.0)
    return _price_rows("r1", zone, instance_type, times, base * walk, on_demand, source=source)


def _price_rows(region, zone, instance_type, times, spot, on_demand, *, source) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "provider": "lab",
            "region": region,
            "zone": zone,
            "instance_type": instance_type,
            "product": "Linux/UNIX",
            "timestamp": times,
            "spot_price_usd_per_hour": spot,
            "on_demand_price_usd_per_hour": on_demand,
            "source": source,
        }
    )
