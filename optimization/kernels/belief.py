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

    ``rows`` (A, ages, S, S) are the chains by the age of the state, of which the last has no end,
    ``weight`` (A,) their least weight in every state, and ``share`` (A, ages, S) the probabilities of
    chain, age and state, which change in place. In every slot a part ``turns`` of each state turns
    into the chains ``other`` (A,).
    """
    many, ages, states = share.shape
    found = np.zeros((slots, states, states))
    after = np.empty((ages, states))
    for k in range(slots):
        for i in range(states):
            own = 0.0
            for old in range(ages):
                total = 0.0
                for a in range(many):
                    total += share[a, old, i]
                for a in range(many):
                    share[a, old, i] = (1.0 - turns) * share[a, old, i] + turns * total * other[a]
                    part = share[a, old, i] + weight[a]
                    own += part
                    for j in range(states):
                        found[k, i, j] += part * rows[a, old, i, j]
            for j in range(states):
                found[k, i, j] /= own
        for a in range(many):
            after[:] = 0.0
            for old in range(ages):
                for i in range(states):
                    for j in range(states):
                        then = min(old + 1, ages - 1) if j == i else 0
                        after[then, j] += share[a, old, i] * rows[a, old, i, j]
            for old in range(ages):
                copy_between(after[old], share[a, old], 0, states)
    return found


@kernel
def walk_states(
    first: np.ndarray, strength: np.ndarray, learned: np.ndarray, chains: np.ndarray, rank: np.ndarray
) -> np.ndarray:
    """Return walks of the states of chains whose rows have Dirichlet distributions, shape (paths, 1 + slots).

    ``strength`` (A, ages, S, S) are the parameters of the rows by the age of the state. They grow by ``learned`` (A,) of each
    transition on a path (Polya's urn): 1 is as if every path had rows of its own, 0 takes the mean rows. ``first`` (A, ages *
    S) are the cumulated probabilities of the first age and state, the states of an age together. ``chains`` and ``rank`` have
    shape (1 + slots, paths): the chain that a path begins with, and turns into later (-1: it stays).
    """
    many, paths = rank.shape
    ages, states = strength.shape[1], strength.shape[2]
    found = np.empty((paths, many), dtype=np.int64)
    seen = np.empty((ages, states, states))
    for p in range(paths):
        chain, label = chains[0, p], 0
        while label < ages * states - 1 and first[chain, label] <= rank[0, p]:
            label += 1
        age, before = label // states, label % states
        found[p, 0] = before
        seen[:] = 0.0
        for k in range(1, many):
            if chains[k, p] >= 0:
                chain = chains[k, p]
                seen[:] = 0.0
            left = 0.0
            for j in range(states):
                left += strength[chain, age, before, j] + seen[age, before, j]
            left *= rank[k, p]
            state = 0
            while state < states - 1:
                left -= strength[chain, age, before, state] + seen[age, before, state]
                if left < 0.0:
                    break
                state += 1
            seen[age, before, state] += learned[chain]
            age = min(age + 1, ages - 1) if state == before else 0
            before = found[p, k] = state
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
    upto = np.empty((inner, last + 1, size, size, size))
    for k in range(inner):
        for old in range(last + 1):
            for i in range(size):
                for end in range(size):
                    total = 0.0
                    for j in range(size):
                        then = min(old + 1, last) if j == i else 0
                        total += rows[old, i, j] * onward[inner - k, then, j, end]
                        upto[k, old, i, end, j] = total
                    for j in range(size):
                        upto[k, old, i, end, j] /= total
    found = np.empty(rank.shape, dtype=np.int64)
    for p in range(paths):
        old = age
        for t in range(slots):
            state, end = states[p, t], states[p, t + 1]
            for k in range(inner):
                j = 0
                while j < size - 1 and upto[k, old, state, end, j] <= rank[p, t, k]:
                    j += 1
                old = min(old + 1, last) if j == state else 0
                state = j
                found[p, t, k] = state
            old = min(old + 1, last) if end == state else 0
    return found
