"""How fast a job runs on n instances: H(n) in work units per hour (M2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from warehouse.errors import JobError


class Throughput(Protocol):
    """H(n), work units per hour on n instances; H(0) = 0. An immutable, hashable value."""

    def __hash__(self) -> int:
        """Equal throughputs have equal hashes."""
        ...

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """H(n) = alpha n + beta for n >= 1 (paper A)."""

    alpha: float = 1.0
    beta: float = 0.0

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances."""
        return self.alpha * n + self.beta if n >= 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Amdahl:
    """H(n) = scale / ((1 - f) + f / n): a share f of the work is parallel."""

    parallel: float
    scale: float = 1.0

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances."""
        return self.scale / ((1.0 - self.parallel) + self.parallel / n) if n >= 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """H(n) = scale n^p."""

    exponent: float
    scale: float = 1.0

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances."""
        return self.scale * float(n) ** self.exponent if n >= 1 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """H(n) measured: ``rates[n - 1]`` work units per hour on n instances."""

    rates: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "rates", tuple(self.rates))

    def rate(self, n: int) -> float:
        """Work units per hour on ``n`` instances; raises `JobError` beyond the table."""
        if n < 1:
            return 0.0
        if n > len(self.rates):
            raise JobError(
                f"throughput table ends at {len(self.rates)} instances, asked for {n}", remedy="lower n_max"
            )
        return self.rates[n - 1]


@lru_cache(maxsize=512)
def rates(throughput: Throughput, n_max: int) -> np.ndarray:
    """H(0..n_max), shape (n_max + 1,), work units per hour; one array for all who ask, closed for writing.

    Raises `JobError` if any rate is not positive and finite. A throughput is a hashable value.
    """
    table = np.array([throughput.rate(n) for n in range(n_max + 1)], dtype=float)
    if not np.isfinite(table).all() or (table[1:] <= 0).any():
        raise JobError(f"throughput {throughput} gives rates {table[1:]}", expected="positive finite rates")
    table.flags.writeable = False
    return table
