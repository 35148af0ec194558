"""What delay costs: nothing but time, a price per hour, or the value lost after a deadline (M8.6) (ours)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from optimization.rental_sizes import Exponential, SizeLaw
from warehouse.errors import SettingsError


class Delay(Protocol):
    """The cost of one job's response time."""

    @property
    def in_usd(self) -> bool:
        """Whether the cost is money; else it is hours."""
        ...

    @property
    def linear_price(self) -> float | None:
        """Cost per hour of response time where it is the same for every hour, else None."""
        ...

    def expected(self, mean_hours: np.ndarray) -> np.ndarray:
        """Expected cost of a job whose response time has these means, hours; same shape."""
        ...

    def cost(self, hours: np.ndarray) -> np.ndarray:
        """Cost of jobs that took ``hours``; same shape."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedDelay:
    """``price`` for every hour of response time: as it stands it counts hours (M8.2), ``in_usd`` it is USD per hour."""

    price: float = 1.0
    in_usd: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.price < float("inf"):
            raise SettingsError(f"a price of delay of {self.price} an hour", expected="a positive number")

    @property
    def linear_price(self) -> float | None:
        """The price."""
        return self.price

    def expected(self, mean_hours: np.ndarray) -> np.ndarray:
        """price x hours."""
        return self.price * np.asarray(mean_hours, dtype=float)

    def cost(self, hours: np.ndarray) -> np.ndarray:
        """price x hours."""
        return self.price * np.asarray(hours, dtype=float)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineDelay:
    """The value a job loses by M2.5: none up to d = ``deadline_hours``, all of ``value_usd`` from gamma d on, linear between.

    A job of type i at width k has T = X_i / s_i(k), so that with m = E[T] and X = E[X] Y

        E[loss] = v / ((gamma - 1) d) * integral from d to gamma d of P(m Y > t) dt.

    Its derivative in m is the price of delay at that width. The loss is not convex in m (a job that is hopelessly late has
    nothing left to lose), so widths are taken from the lower convex hull, as for measured speedups (M8.3).
    """

    deadline_hours: float
    value_usd: float
    gamma: float = 1.5
    size_law: SizeLaw = field(default_factory=Exponential)

    def __post_init__(self) -> None:
        if not self.deadline_hours > 0 or not self.value_usd > 0 or not self.gamma > 1:
            raise SettingsError(
                f"a deadline of {self.deadline_hours} h, a value of {self.value_usd} USD, a decay of {self.gamma}",
                expected="a positive deadline and value, and a decay above 1",
            )

    @property
    def in_usd(self) -> bool:
        """True: value is in USD."""
        return True

    @property
    def linear_price(self) -> float | None:
        """None: an hour after the deadline costs, one before it does not."""
        return None

    def expected(self, mean_hours: np.ndarray) -> np.ndarray:
        """The expected loss in USD at these mean response times."""
        d, end = self.deadline_hours, self.gamma * self.deadline_hours
        means = np.asarray(mean_hours, dtype=float)
        late = np.array([m * self.size_law.mean_between(d / m, end / m) for m in means.ravel()])
        return np.asarray(self.value_usd / (end - d) * late.reshape(means.shape))

    def cost(self, hours: np.ndarray) -> np.ndarray:
        """The value lost by jobs that took ``hours``, USD."""
        d = self.deadline_hours
        late = (np.asarray(hours, dtype=float) - d) / ((self.gamma - 1.0) * d)
        return self.value_usd * np.clip(late, 0.0, 1.0)
