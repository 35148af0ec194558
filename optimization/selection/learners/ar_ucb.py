"""AR-UCB: optimism when utilities are autocorrelated and only the played policy's utility is seen (M10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from optimization.selection.contract import BanditFeedback, Played, Weights, checked_seen, even_weights
from warehouse.errors import SettingsError

#: Optimistic values nearer than this tie, and are drawn evenly.
_TIE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class ArState:
    """What was seen, summed: ``squares`` (M, k + 1, k + 1), ``products`` (M, k + 1), ``energy`` the squared utilities.

    ``last`` (k,) holds the utilities seen last, newest first, 0 before the first. ``price`` sums twice the confidence width of
    every policy played: what being unsure may have cost so far.
    """

    names: tuple[str, ...]
    rounds: int
    last: np.ndarray
    squares: np.ndarray
    products: np.ndarray
    energy: float
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ArUcb:
    """AR-UCB of "Autoregressive bandits" (Bacchiocchi, Genalti, Maran, Mussi, Restelli, Gatti and Metelli, 2022).

    Model: the played policy a earns x_t = g_0(a) + sum_i g_i(a) x_{t-i} + noise, with the k utilities seen last, whoever
    earned them. Ridge regression per policy, and the policy of the largest optimistic value <g, z> + beta |z|_{V^-1} is
    played, beta = sqrt(ridge (m^2 + 1)) + noise sqrt(2 ln(M / delta) + ln det(V / ridge)), m = 1. If the
    model holds with sub-Gaussian ``noise`` then with probability 1 - delta the best policy's mean given the same past exceeds
    the played one's by at most ``ArState.price`` in sum; the paper turns that into a regret of order
    (k + 1)^(3/2) sqrt(M T) / (1 - Gamma)^2. Against tables that do not follow the model nothing is proven.

    ``pooled`` (ours): coefficients are pulled toward those of all policies together, as if ``ridge`` rounds had shown them,
    and the noise is what those leave unexplained: a hundred policies share what few rounds show. Nothing is proven of it.
    """

    lags: int = 1
    ridge: float = 1.0
    noise: float = 0.5
    delta: float = 0.05
    pooled: bool = False

    def __post_init__(self) -> None:
        if self.lags < 0 or not (self.ridge > 0.0 and self.noise > 0.0 and 0.0 < self.delta < 1.0):
            raise SettingsError(
                f"{self.lags} lags, ridge {self.ridge}, noise {self.noise}, delta {self.delta}",
                expected="no negative lags, a positive ridge and noise, delta in (0, 1)",
            )

    @property
    def name(self) -> str:
        """``ar-ucb``, or ``ar-ucb pooled``."""
        return "ar-ucb pooled" if self.pooled else "ar-ucb"

    def start(self, names: Sequence[str]) -> ArState:
        """Nothing seen."""
        known = even_weights(names).names
        size, width = len(known), self.lags + 1
        return ArState(
            names=known,
            rounds=0,
            last=np.zeros(self.lags),
            squares=np.zeros((size, width, width)),
            products=np.zeros((size, width)),
            energy=0.0,
            price=0.0,
        )

    def learn(self, state: ArState, seen: BanditFeedback) -> ArState:
        """Add what was seen to the played policy's regression, and what its width may have cost."""
        checked_seen(state.names, seen)
        z = np.concatenate([[1.0], state.last])
        _, width = self.outlook(state)
        squares, products = state.squares.copy(), state.products.copy()
        squares[seen.policy] += np.outer(z, z)
        products[seen.policy] += seen.utility * z
        return ArState(
            names=state.names,
            rounds=state.rounds + 1,
            last=np.concatenate([[seen.utility], state.last])[: self.lags],
            squares=squares,
            products=products,
            energy=state.energy + seen.utility**2,
            price=state.price + 2.0 * float(width[seen.policy]),
        )

    def outlook(self, state: ArState) -> tuple[np.ndarray, np.ndarray]:
        """Expected utility of every policy in the next round, and the width of confidence around it, both (M,)."""
        size, dim = state.products.shape
        z = np.concatenate([[1.0], state.last])
        own = state.squares + self.ridge * np.eye(dim)
        centre, noise, reach = np.zeros(dim), self.noise, math.sqrt(2.0 * self.ridge)
        if self.pooled:
            centre, noise = self._shared(state)
            reach = 0.0
        inverse = np.linalg.inv(own)
        coefficients = (inverse @ (state.products + self.ridge * centre)[..., None])[..., 0]
        _, log_det = np.linalg.slogdet(own / self.ridge)
        beta = reach + noise * np.sqrt(2.0 * math.log(size / self.delta) + log_det)
        return coefficients @ z, beta * np.sqrt(np.einsum("i,aij,j->a", z, inverse, z))

    def _shared(self, state: ArState) -> tuple[np.ndarray, float]:
        """Coefficients of all policies together, and the standard deviation of what they leave unexplained."""
        dim = state.products.shape[1]
        squares, products = state.squares.sum(axis=0), state.products.sum(axis=0)
        centre = np.linalg.solve(squares + 1e-3 * np.eye(dim), products)
        left = state.energy - 2.0 * float(centre @ products) + float(centre @ squares @ centre)
        # Before anything is seen the noise is the one assumed; it counts as one round.
        return centre, math.sqrt((max(left, 0.0) + self.noise**2) / (state.rounds + 1.0))

    def weights(self, state: ArState) -> Weights:
        """All weight on the most optimistic policy, evenly on those that tie."""
        mean, width = self.outlook(state)
        best = (mean + width) >= float((mean + width).max()) - _TIE
        return Weights(log_weight=np.where(best, 0.0, -np.inf), rounds=state.rounds, names=state.names)

    def static_bounds(self, played: Played) -> np.ndarray:
        """Infinite: a table of utilities need not follow the model (see `ArState.price` for one that does)."""
        return np.full(len(played.utilities), np.inf)

    def shifting_bounds(self, played: Played, shifts: int) -> np.ndarray:
        """Infinite, as above."""
        return self.static_bounds(played)
