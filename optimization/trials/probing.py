"""How often to probe a market when a probe costs money (M10).

The setting is that of "Monitoring state transitions in Markovian systems with sampling cost" (2025): a Markov chain, a price for
every look at it, a loss for guessing it wrongly in between. What is known is the state seen last and its age, so that the
best rule waits a fixed number of slots after each state. Two rules: *greedy*, probe as soon as the expected loss of a slot without
looking exceeds the price of a look; and *best*, the waits of least mean loss and price per slot, exact for the chain. For
counts the loss is that of an interval too wide or too narrow: instances guessed and absent, there and unpredicted (M6.5).

Follow a count that is seen only when it is probed: what a rule of waiting really pays on a recorded series (M10, M6.5).

A chain is estimated on a stretch that was probed in every slot. After that only probes are seen; from two probes k slots
apart the transitions in between are known in expectation (one step of expectation-maximisation a day, old ones forgotten),
and the rule is made anew. Nothing that was not probed is read (ours).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from optimization.market.belief import CountChain, forgotten
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


#: From what the chain says and what is at stake to a rule.
Rule = Callable[[Ahead, Stakes], Waits]
#: Strength of the pull of transitions toward staying put, in transitions.
TOWARD_STAYING = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tracked:
    """What a rule paid on a series, per slot with a known count: ``absent`` and ``unpredicted`` instances, ``probes``, ``wrong``
    (share of slots with a wrong guess) and ``cost`` (USD); ``slots`` is their number."""

    slots: int
    probes: float
    absent: float
    unpredicted: float
    wrong: float
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """How a series is watched: the counts told apart (``levels``), the ``stakes``, the longest wait and the slots between two
    re-estimations (``relearn``, 0: never), and the half-life of what was learned, all in slots.

    ``hold`` guesses the count seen last instead of the chain's best guess.
    """

    levels: np.ndarray
    stakes: Stakes
    longest: int
    relearn: int = 0
    half_life: float = 1000.0
    hold: bool = False


def levels_of(capacity: int, *, most: int = 21) -> np.ndarray:
    """Counts that are told apart: all of 0..capacity, or ``most`` spread evenly."""
    if capacity < most:
        return np.arange(capacity + 1)
    return np.unique(np.round(np.linspace(0, capacity, most)).astype(int))


def learned_chain(transitions: np.ndarray, levels: np.ndarray) -> CountChain:
    """The chain of weighted transition counts (S, S), each row pulled toward staying with the share of all that stayed."""
    size = len(levels)
    total = transitions.sum()
    stayed = (np.trace(transitions) + 4.0) / (total + 5.0)
    visits = transitions.sum(axis=0) + 1.0 / size
    prior = (1.0 - stayed) * (visits / visits.sum())[None, :] + stayed * np.eye(size)
    row = transitions + TOWARD_STAYING * prior
    return CountChain(count=levels, transition=row / row.sum(axis=1, keepdims=True))


def transitions_seen(counts: np.ndarray, watch: Watch) -> np.ndarray:
    """Weighted transition counts of a series probed in every slot, NaN in gaps, as they look at its end."""
    return forgotten(states_of(counts, watch.levels)[None, :], len(watch.levels), watch.half_life)


def states_of(counts: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The state of each count: the largest level not above it, -1 in gaps."""
    found = np.searchsorted(levels, np.nan_to_num(counts, nan=0.0), side="right") - 1
    return np.where(np.isnan(counts), -1, found)


def expected_transitions(
    transition: np.ndarray, before: int, after: int, apart: int, *, powers: np.ndarray
) -> np.ndarray:
    """Expected transitions between a probe that saw state ``before`` and one ``apart`` slots later that saw ``after``, (S, S).

    Sum over the steps m of P^m[before, i] P[i, j] P^(k-1-m)[j, after] / P^k[before, after]; ``powers`` holds P^1, P^2, ...
    The result adds up to ``apart``, or is zero if the chain cannot do it.
    """
    size = len(transition)
    whole = powers[apart - 1, before, after]
    if not whole > 0.0:
        return np.zeros((size, size))
    unit = np.eye(size)
    reach = np.vstack([unit[before][None], powers[: apart - 1, before, :]])
    leave = np.vstack([unit[:, after][None], powers[: apart - 1, :, after]])[::-1]
    return np.asarray((reach.T @ leave) * transition / whole)


@dataclass(slots=True)
class _Memory:
    """What a watcher has learned: weighted transitions and the probes since it last did."""

    transitions: np.ndarray
    pairs: list[tuple[int, int, int]] = field(default_factory=list)

    def digest(self, chain: CountChain, powers: np.ndarray, keep: float) -> None:
        """Fade what is old by ``keep`` and add the expected transitions between the new probes."""
        self.transitions = self.transitions * keep
        for before, after, apart in self.pairs:
            self.transitions = self.transitions + expected_transitions(
                chain.transition, before, after, apart, powers=powers
            )
        self.pairs.clear()


def track(counts: np.ndarray, transitions: np.ndarray, rule: Rule, watch: Watch) -> Tracked:
    """Follow ``counts`` (slots,), NaN where nobody knows them, from a first probe in the first known slot.

    ``transitions`` are those of the stretch before (`transitions_seen`). A probe in a gap is paid and shows nothing; the next slot
    is tried again. Slots in gaps are not scored. Raises `SettingsError` if no count is known.
    """
    known = np.flatnonzero(~np.isnan(counts))
    if not known.size:
        raise SettingsError(f"{len(counts)} slots, no known count", expected="a series with known counts")
    states = states_of(counts, watch.levels)
    memory = _Memory(transitions)
    chain = learned_chain(transitions, watch.levels)
    ahead = look_ahead(chain, watch.stakes, longest=watch.longest, hold=watch.hold)
    waits = rule(ahead, watch.stakes).slots
    last, age, due = int(states[known[0]]), 0, int(waits[states[known[0]]])
    probes, errors = 0, []
    for t in range(int(known[0]) + 1, len(counts)):
        age += 1
        if age >= due or age >= watch.longest:
            probes += 1
            if states[t] >= 0:
                memory.pairs.append((last, int(states[t]), min(age, watch.longest)))
                last, age = int(states[t]), 0
                due = int(waits[last])
                errors.append(0.0)
        elif states[t] >= 0:
            errors.append(float(ahead.guess[age - 1, last]) - float(counts[t]))
        if watch.relearn and (t - int(known[0])) % watch.relearn == 0:
            memory.digest(chain, ahead.law, 0.5 ** (watch.relearn / watch.half_life))
            chain = learned_chain(memory.transitions, watch.levels)
            ahead = look_ahead(chain, watch.stakes, longest=watch.longest, hold=watch.hold)
            waits = rule(ahead, watch.stakes).slots
            due = int(waits[last])
    return _tracked(np.array(errors), probes, watch.stakes)


def _tracked(errors: np.ndarray, probes: int, stakes: Stakes) -> Tracked:
    slots = max(len(errors), 1)
    absent, unpredicted = np.maximum(errors, 0.0).sum(), np.maximum(-errors, 0.0).sum()
    spent = stakes.absent * absent + stakes.unpredicted * unpredicted + stakes.probe * probes
    return Tracked(
        slots=len(errors),
        probes=probes / slots,
        absent=float(absent) / slots,
        unpredicted=float(unpredicted) / slots,
        wrong=float((errors != 0.0).mean()) if len(errors) else 0.0,
        cost=float(spent) / slots,
    )
