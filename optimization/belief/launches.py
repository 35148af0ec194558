"""Launches of a user as evidence of availability: what became of a request, slot by slot (M13.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from slackwater.optimization.belief.archetypes import ALL, NONE, PART, STATES, Archetypes

#: State of a slot in which nothing is known of the request.
UNKNOWN: Final = -1
#: Half-life of transitions between own launches, in slots.
HALF_LIFE_SLOTS: Final = 24.0
#: Launches further apart than this many slots show no transition.
MOST_APART: Final = 24


def launch_state(granted: int, asked: int) -> int:
    """Return the state of a request of which ``granted`` of ``asked`` instances run.

    >>> launch_state(2, 4), launch_state(4, 4), launch_state(0, 4)
    (1, 2, 0)
    """
    return NONE if granted <= 0 else ALL if granted >= asked else PART


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Outcome of a request in ``slot`` of the job: its state, after ``held`` slots in which all of it ran.

    A negative slot is before the job.
    """

    slot: int
    state: int
    held: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Launches:
    """States of a request of ``request`` instances in consecutive slots, `UNKNOWN` where nothing is known.

    Element ``first`` is slot 0 of the job. ``prior`` are the archetypes of such a request.
    """

    request: int
    states: np.ndarray
    prior: Archetypes
    first: int = 0

    @classmethod
    def of(cls, request: int, launches: Iterable[Launch], slots: int, prior: Archetypes) -> Launches:
        """Return the launches of a job of ``slots`` slots; of several in a slot the last counts."""
        known = list(launches)
        first = max([0, *(one.held - one.slot for one in known)])
        states = np.full(first + slots, UNKNOWN)
        for one in known:
            place = first + one.slot
            states[place - one.held : place] = ALL
        for one in known:
            states[first + one.slot] = one.state
        return cls(request=request, states=states, prior=prior, first=first)

    def until(self, slot: int) -> np.ndarray:
        """Return the states up to the job's slot ``slot``, which is the last element."""
        return self.states[: self.first + slot + 1]

    def known(self, slot: int) -> int:
        """Return the number of slots with a known state up to ``slot``."""
        return int((self.until(slot) != UNKNOWN).sum())


def own_transitions(states: np.ndarray, chain: np.ndarray) -> np.ndarray:
    """Return the weighted transitions (3, 3) between known ``states``, the last of which is the present slot's.

    The weight halves every `HALF_LIFE_SLOTS`. Two launches several slots apart count as one
    transition, spread over the slots between them as ``chain`` (3, 3) makes it likely.
    """
    found = np.zeros((STATES, STATES))
    known = np.flatnonzero(states != UNKNOWN)
    if len(known) < 2:
        return found
    apart, age = np.diff(known), len(states) - 1 - known[1:]
    weight = 0.5 ** (age / HALF_LIFE_SLOTS)
    before, after = states[known[:-1]], states[known[1:]]
    near = apart == 1
    np.add.at(found, (before[near], after[near]), weight[near])
    for k in np.flatnonzero((apart > 1) & (apart <= MOST_APART)):
        found += weight[k] * _between(int(before[k]), int(after[k]), int(apart[k]), chain)
    return found


def _between(before: int, after: int, apart: int, chain: np.ndarray) -> np.ndarray:
    """Return the mean transition (3, 3) of a slot on the way between two states ``apart`` slots from each other."""
    onward = np.empty((apart, STATES))
    onward[-1] = np.eye(STATES)[after]
    for k in range(apart - 2, -1, -1):
        onward[k] = chain @ onward[k + 1]
    found, here = np.zeros((STATES, STATES)), np.eye(STATES)[before]
    for k in range(apart):
        joint = here[:, None] * chain * onward[k]
        joint /= joint.sum()
        found += joint
        here = joint.sum(axis=0)
    return found / apart
