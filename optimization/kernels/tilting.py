"""A chain tilted until its marginals are given ones (M6.9)."""

from __future__ import annotations

import numpy as np

from optimization.kernels.compiling import kernel


@kernel
def tilt(onward: np.ndarray, now: np.ndarray, law: np.ndarray, rounds: int, close: float) -> np.ndarray:
    """Transitions (h, S, S) by slot whose marginals from ``now`` (S,) are ``law`` (h, S): ``onward`` (S, S) times column factors.

    Row i of a slot is onward[i, j] f[j] / sum over j; f is fitted by ``rounds`` rounds of f[j] *= law[j] / marginal[j], fewer
    where no probability is off by more than ``close`` (Deming and Stephan 1940, with the rows' sums kept at 1). What is then
    still off is moved from states that have too much to those that have too little, for every row alike, so that marginals are
    met where no factors could (ours).
    """
    slots, states = law.shape
    out = np.empty((slots, states, states))
    here = now.copy()
    for k in range(slots):
        factor = np.ones(states)
        row = out[k]
        there = np.zeros(states)
        for turn in range(rounds):
            there[:] = 0.0
            for i in range(states):
                total = 0.0
                for j in range(states):
                    row[i, j] = onward[i, j] * factor[j]
                    total += row[i, j]
                for j in range(states):
                    row[i, j] = row[i, j] / total if total > 0.0 else law[k, j]
                    there[j] += here[i] * row[i, j]
            if np.abs(there - law[k]).max() <= close:
                break
            if turn < rounds - 1:
                for j in range(states):
                    factor[j] = factor[j] * law[k, j] / there[j] if there[j] > 0.0 else factor[j]
                factor /= factor.max()
        lack = np.maximum(law[k] - there, 0.0)
        if lack.sum() > 0.0:
            lack /= lack.sum()
            for j in range(states):
                share = (there[j] - law[k, j]) / there[j] if there[j] > law[k, j] else 0.0
                for i in range(states):
                    moved = row[i, j] * share
                    row[i, j] -= moved
                    row[i] += moved * lack
        here = law[k].copy()
    return out
