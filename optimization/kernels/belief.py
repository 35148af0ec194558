"""Compiled loops of the belief about a request (M13.3): its transitions by slot, and walks of its states."""

from __future__ import annotations

import numpy as np

from slackwater.optimization.kernels.arrays import copy_between
from slackwater.optimization.kernels.compiling import kernel


@kernel
def request_steps(
    rows: np.ndarray, weight: np.ndarray, share: np.ndarray, other: np.ndarray, turns: float, slots: int
) -> np.ndarray:
    """Return the mean transitions of a mixture of chains into each of the next ``slots`` slots, shape (slots, S, S).

    ``rows`` (A, S, S) are the chains, ``weight`` (A,) their least weight in every state, and
    ``share`` (A, S) the probabilities of chain and state, which change in place. In every slot a
    part ``turns`` of each state turns into the chains ``other`` (A,).
    """
    many, states = share.shape
    found = np.zeros((slots, states, states))
    after = np.empty(states)
    for k in range(slots):
        for i in range(states):
            total = 0.0
            for a in range(many):
                total += share[a, i]
            own = 0.0
            for a in range(many):
                share[a, i] = (1.0 - turns) * share[a, i] + turns * total * other[a]
                part = share[a, i] + weight[a]
                own += part
                for j in range(states):
                    found[k, i, j] += part * rows[a, i, j]
            for j in range(states):
                found[k, i, j] /= own
        for a in range(many):
            after[:] = 0.0
            for i in range(states):
                for j in range(states):
                    after[j] += share[a, i] * rows[a, i, j]
            copy_between(after, share[a], 0, states)
    return found


@kernel
def walk_states(first: np.ndarray, rows: np.ndarray, turns: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return walks of the states of chains, shape (paths, 1 + slots), from the cumulated ``first`` (paths, S) states.

    ``rows`` (paths + turned, S, S) are cumulated: the chain of each path, then those of the paths
    that turn, slot by slot. ``turns`` and ``rank`` have shape (1 + slots, paths).
    """
    many, paths = rank.shape
    states = rows.shape[1]
    found = np.empty((paths, many), dtype=np.int64)
    chain = np.arange(paths)
    another = paths
    for k in range(many):
        for p in range(paths):
            if k and turns[k, p]:
                chain[p] = another
                another += 1
            upto = rows[chain[p], found[p, k - 1]] if k else first[p]
            state = 0
            while state < states - 1 and upto[state] <= rank[k, p]:
                state += 1
            found[p, k] = state
    return found


@kernel
def walk_slots(first: np.ndarray, upto: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return walks of the states of a chain, shape (paths, slots), after the cumulated ``first`` (S,) state.

    ``upto`` (slots, S, S) are the cumulated transitions into each slot, ``rank`` has shape (1 + slots,
    paths).
    """
    many, paths = rank.shape
    states = first.size
    found = np.empty((paths, many - 1), dtype=np.int64)
    for p in range(paths):
        state = 0
        while state < states - 1 and first[state] <= rank[0, p]:
            state += 1
        for k in range(many - 1):
            before, state = state, 0
            while state < states - 1 and upto[k, before, state] <= rank[k + 1, p]:
                state += 1
            found[p, k] = state
    return found


@kernel
def walk_inside(states: np.ndarray, age: int, rows: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Return states between the ends of slots, shape of ``rank`` (paths, slots, parts - 1).

    ``states`` (paths, 1 + slots) are those at the ends, ``rows`` (ages, S, S) the transitions per
    part by the age of the state, of which the last has no end. ``age`` is that of the first states.
    """
    paths, slots, inner = rank.shape
    last, size = len(rows) - 1, rows.shape[1]
    onward = np.zeros((inner + 1, last + 1, size, size))
    for old in range(last + 1):
        for i in range(size):
            onward[0, old, i, i] = 1.0
    for k in range(inner):
        for old in range(last + 1):
            for i in range(size):
                for m in range(size):
                    then = min(old + 1, last) if m == i else 0
                    for j in range(size):
                        onward[k + 1, old, i, j] += rows[old, i, m] * onward[k, then, m, j]
    found = np.empty(rank.shape, dtype=np.int64)
    for p in range(paths):
        old = age
        for t in range(slots):
            state, end = states[p, t], states[p, t + 1]
            for k in range(inner):
                ahead, older = onward[inner - k], min(old + 1, last)
                total = 0.0
                for j in range(size):
                    total += rows[old, state, j] * ahead[older if j == state else 0, j, end]
                left = rank[p, t, k] * total
                j = 0
                while j < size - 1:
                    left -= rows[old, state, j] * ahead[older if j == state else 0, j, end]
                    if left < 0.0:
                        break
                    j += 1
                old = older if j == state else 0
                state = j
                found[p, t, k] = state
            old = min(old + 1, last) if end == state else 0
    return found
