"""How often to probe a market when a probe costs money (M10).

The setting is that of "Monitoring state transitions in Markovian systems with sampling cost" (2025): a Markov chain, a price for
every look at it, a loss for guessing it wrongly in between. What is known is the state seen last and its age, so that the
best rule waits a fixed number of slots after each state. Two rules: *greedy*, probe as soon as the expected loss of a slot without
looking exceeds the price of a look; and *best*, the waits of least mean loss and price per slot, exact for the chain. For
counts the loss is that of an interval too wide or too narrow: instances guessed and absent, there and unpredicted (M6.5).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimization.market_chain import CountChain
from warehouse.errors import SettingsError

#: Rounds of policy iteration after which it must have settled: it takes a handful.
_MOST_ROUNDS = 200
#: Mixed into every chain, so that each state is reached from each and the mean per slot is one number.
_MIXED = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stakes:
    """What errors and looks cost, USD: an instance guessed and ``absent`` for a slot, one there and ``unpredicted``, a ``probe``.

    Raises `SettingsError` unless both errors cost something and a probe is not paid for.
    """

    absent: float
    unpredicted: float
    probe: float

    def __post_init__(self) -> None:
        if not (self.absent > 0.0 and self.unpredicted > 0.0 and self.probe >= 0.0):
            raise SettingsError(
                f"{self.absent} for an absent instance, {self.unpredicted} for an unpredicted one, {self.probe} a probe",
                expected="positive costs of errors, no negative price of a probe",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """A rule: after seeing state s probe again ``slots[s]`` slots later (1: in the next slot), shape (S,).

    ``per_slot`` is the mean loss and price per slot that the chain promises, USD, ``rate`` the share of slots probed.
    """

    slots: np.ndarray
    per_slot: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """What a chain says k = 1..K slots after state s was seen: ``law`` (K, S, S), ``guess`` (K, S) the count of least
    expected loss, ``loss`` (K, S) that loss, USD a slot."""

    law: np.ndarray
    guess: np.ndarray
    loss: np.ndarray


def look_ahead(chain: CountChain, stakes: Stakes, *, longest: int, hold: bool = False) -> Ahead:
    """The laws P^k, their best guesses and losses for k = 1..``longest``.

    The loss of guessing g is absent E(g - n)+ + unpredicted E(n - g)+, least at the quantile unpredicted / (absent +
    unpredicted) of the law. With ``hold`` the guess is the count seen last. Raises `SettingsError` for less than one slot.
    """
    if longest < 1:
        raise SettingsError(f"looking {longest} slots ahead", expected="at least one")
    step = (1.0 - _MIXED) * chain.transition + _MIXED / len(chain.count)
    laws = [step]
    for _ in range(longest - 1):
        laws.append(laws[-1] @ step)
    law, count = np.array(laws), chain.count.astype(float)
    level = stakes.unpredicted / (stakes.absent + stakes.unpredicted)
    place = (np.cumsum(law, axis=2) < level - 1e-12).sum(axis=2).clip(max=len(count) - 1)
    guess = np.broadcast_to(count, place.shape) if hold else count[place]
    over = guess[..., None] - count
    cost = np.where(over > 0, stakes.absent * over, -stakes.unpredicted * over)
    return Ahead(law=law, guess=guess, loss=(law * cost).sum(axis=2))


def greedy_waits(ahead: Ahead, stakes: Stakes) -> Waits:
    """Probe in the first slot whose expected loss without looking exceeds the price of a look; at the latest in the last one."""
    over = ahead.loss > stakes.probe
    first = np.where(over.any(axis=0), over.argmax(axis=0), len(ahead.loss) - 1)
    return valued(first + 1, ahead, stakes)


def fixed_waits(every: int, ahead: Ahead, stakes: Stakes) -> Waits:
    """Probe every ``every`` slots, whatever was seen."""
    return valued(np.full(ahead.loss.shape[1], every), ahead, stakes)


def best_waits(ahead: Ahead, stakes: Stakes) -> Waits:
    """The waits of least mean loss and price per slot, none longer than `Ahead` looks: policy iteration, exact for the chain.

    After state s with wait w the losses of w - 1 slots and one probe are paid, w slots pass, and the next state has the
    law P^w: a semi-Markov decision process (Howard 1960; Puterman 1994, chapter 11). The state is known in a slot probed.
    """
    spent = _spent(ahead, stakes)
    slots = np.arange(1, len(spent) + 1, dtype=float)[:, None]
    waits = np.full(spent.shape[1], 1)
    for _ in range(_MOST_ROUNDS):
        gain, bias = _evaluate(waits, spent, ahead)
        worth = spent - gain * slots + ahead.law @ bias
        better = worth.argmin(axis=0) + 1
        now = worth[waits - 1, np.arange(len(waits))]
        better = np.where(worth.min(axis=0) < now - 1e-12, better, waits)
        if (better == waits).all():
            break
        waits = better
    return valued(waits, ahead, stakes)


def valued(slots: np.ndarray, ahead: Ahead, stakes: Stakes) -> Waits:
    """A rule with its mean loss and price per slot; raises `SettingsError` for waits outside 1..K."""
    waits = np.asarray(slots, dtype=int)
    if waits.min() < 1 or waits.max() > len(ahead.loss):
        raise SettingsError(
            f"waits of {waits.min()} to {waits.max()} slots", expected=f"1 to {len(ahead.loss)} slots"
        )
    gain, _ = _evaluate(waits, _spent(ahead, stakes), ahead)
    nothing = np.ones_like(ahead.loss)
    rate, _ = _evaluate(waits, nothing, ahead)
    return Waits(slots=waits, per_slot=gain, rate=rate)


def _spent(ahead: Ahead, stakes: Stakes) -> np.ndarray:
    """Expected losses and the probe from state s until a probe k slots later, shape (K, S)."""
    before = np.cumsum(ahead.loss, axis=0) - ahead.loss
    return np.asarray(before + stakes.probe)


def _evaluate(waits: np.ndarray, spent: np.ndarray, ahead: Ahead) -> tuple[float, np.ndarray]:
    """Mean ``spent`` per slot of a rule, and the bias of each state (that of the first is 0)."""
    size = len(waits)
    at = np.arange(size)
    system = np.zeros((size + 1, size + 1))
    system[:size, :size] = np.eye(size) - ahead.law[waits - 1, at]
    system[:size, size] = waits
    system[size, 0] = 1.0
    solved = np.linalg.solve(system, np.append(spent[waits - 1, at], 0.0))
    return float(solved[size]), solved[:size]
