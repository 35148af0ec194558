"""What came of past forecasts: running sums of error products and of transforms, slot by slot (M6.6, ours)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.recalibration import transforms
from forecasting.stacking import error_products

#: Steps at which weights and coverage are followed; between them they are interpolated, beyond them held.
NODES = np.array([1, 2, 3, 4, 6, 8, 12, 24, 48])
#: Hours after which a past forecast counts half for the weights.
HALF_LIFE = 24.0
#: How many times longer coverage is remembered: it takes longer to learn.
_MEMORY = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Laws of all members at consecutive slots from ``start`` (since the epoch), and what came, at `NODES`.

    ``laws`` (members, places, nodes, states), ``came`` (places, nodes), NaN where nothing did. Sums forget half every
    ``half_life`` slots.
    """

    start: int
    laws: np.ndarray
    came: np.ndarray
    half_life: float

    @property
    def slots(self) -> np.ndarray:
        """The slots forecast from, since the epoch, shape (places,)."""
        return self.start + np.arange(self.came.shape[0])

    def products(self, first: int, at: np.ndarray, so_far: np.ndarray | None = None) -> np.ndarray:
        """Sums of error products standing at slots ``at``, of forecasts that came true from slot ``first`` on.

        The result has shape (at, nodes, members, members); ``so_far`` is the sum before ``first``.
        """
        return self._running(error_products(self.laws, self.came), first, at, self.half_life, so_far)

    def transforms(
        self, weights: np.ndarray, first: int, at: np.ndarray, so_far: np.ndarray | None = None
    ) -> np.ndarray:
        """Sums of transforms of the mixture by ``weights`` (places, nodes, members), likewise, shape (at, nodes, BINS)."""
        mixture = np.einsum("pkm,mpkn->pkn", weights, self.laws)
        terms = transforms(mixture, self.came)
        return self._running(terms, first, at, _MEMORY * self.half_life, so_far)

    def _running(
        self, terms: np.ndarray, first: int, at: np.ndarray, half_life: float, so_far: np.ndarray | None
    ) -> np.ndarray:
        """Sums at slots ``at`` (ascending) of ``terms`` (places, nodes, ...): a forecast enters when it comes true."""
        total = np.zeros(terms.shape[1:]) if so_far is None else so_far
        decay = 0.5 ** (1.0 / half_life)
        out = np.empty((at.size, *total.shape))
        node, reached = np.arange(NODES.size), 0
        for slot in range(first, int(at[-1]) + 1):
            made = slot - NODES - self.start
            known = (made >= 0) & (made < terms.shape[0])
            total = total * decay
            total[known] += terms[made[known], node[known]]
            while reached < at.size and at[reached] == slot:
                out[reached] = total
                reached += 1
        out[reached:] = total
        return out
