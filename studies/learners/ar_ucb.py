"""AR-UCB: optimism for autocorrelated utilities under bandit feedback (M10)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackwater.optimization.selection.contract import PlayedRounds, Weights, even_weights
from slackwater.studies.learners.contract import BanditFeedback, checked_seen
from slackwater.warehouse.errors import SettingsError

#: Optimistic values closer than this are ties, drawn evenly.
_TIE = 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class ArState:
    """Sums over the observed rounds: ``squares`` (M, k + 1, k + 1), ``products`` (M, k + 1), ``energy``.

    ``energy`` is the sum of squared utilities. ``last`` (k,) holds the last observed utilities,
    newest first, 0 before the first. ``price`` sums twice the confidence width of every policy
    played: the possible cost of uncertainty so far.
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

    Model: the played policy a earns x_t = g_0(a) + sum_i g_i(a) x_{t-i} + noise, with the last k
    observed utilities of any policy. Ridge regression per policy; the policy with the largest
    optimistic value <g, z> + beta |z|_{V^-1} is played, with beta = sqrt(ridge (m^2 + 1)) + noise
    sqrt(2 ln(M / delta) + ln det(V / ridge)), m = 1. If the model holds with sub-Gaussian
    ``noise``, then with probability 1 - delta the summed difference between the best policy's mean
    given the same past and that of the played policy is at most ``ArState.price``; the paper
    derives a regret of order (k + 1)^(3/2) sqrt(M T) / (1 - Gamma)^2. For tables that do not follow
    the model nothing is proven.

    ``pooled`` (ours): the coefficients are shrunk toward those of all policies together, with the
    weight of ``ridge`` rounds, and the noise is the residual of the pooled fit: a hundred policies
    share the information of few rounds. Nothing is proven for it.
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
        """Return a state without observations."""
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
        """Add the feedback to the regression of the played policy, and its width to the price."""
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
        """Return the expected utility of every policy in the next round and the confidence width, both (M,)."""
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
        """Return the coefficients of all policies together and the standard deviation of their residual."""
        dim = state.products.shape[1]
        squares, products = state.squares.sum(axis=0), state.products.sum(axis=0)
        centre = np.linalg.solve(squares + 1e-3 * np.eye(dim), products)
        left = state.energy - 2.0 * float(centre @ products) + float(centre @ squares @ centre)
        # The assumed noise counts as one round and is the only source before the first observation.
        return centre, math.sqrt((max(left, 0.0) + self.noise**2) / (state.rounds + 1.0))

    def weights(self, state: ArState) -> Weights:
        """Return all weight on the most optimistic policy, evenly over ties."""
        mean, width = self.outlook(state)
        best = (mean + width) >= float((mean + width).max()) - _TIE
        return Weights(log_weight=np.where(best, 0.0, -np.inf), rounds=state.rounds, names=state.names)

    def static_bounds(self, played: PlayedRounds) -> np.ndarray:
        """Return infinity: a table need not follow the model (`ArState.price` bounds tables that do)."""
        return np.full(len(played.utilities), np.inf)

    def shifting_bounds(self, played: PlayedRounds, shifts: int) -> np.ndarray:
        """Return infinity, as `static_bounds`."""
        return self.static_bounds(played)
