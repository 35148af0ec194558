"""Follow a count that is seen only when it is probed: what a rule of waiting really pays on a recorded series (M10, M6.5).

A chain is estimated on a stretch that was probed in every slot. After that only probes are seen; from two probes k slots apart the
transitions in between are known in expectation (one step of expectation-maximisation a day, old ones forgotten), and the rule
is made anew. Nothing that was not probed is read (ours).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from optimization.market_chain import CountChain, forgotten
from optimization.probing import Ahead, Stakes, Waits, look_ahead
from warehouse.errors import SettingsError

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
