"""Own launches and counts as evidence of availability: the state of a request, slot by slot (M13.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from slackwater.optimization.belief.archetypes import (
    AGES,
    ALL,
    NONE,
    PART,
    STATES,
    Archetypes,
    request_states,
)
from slackwater.optimization.belief.ratings import SlotRatings

#: State of a slot in which nothing is known of the request.
UNKNOWN: Final = -1
#: Half-life of transitions between own launches, in slots.
HALF_LIFE_SLOTS: Final = 24.0
#: Slots whose evidence is read; older transitions have a weight below .001.
MOST_SLOTS: Final = 240
#: Launches further apart than this many slots show no transition.
MOST_APART: Final = 24


def known_states(counts: np.ndarray, request: int) -> np.ndarray:
    """Return the state of a request at each count, `UNKNOWN` for NaN."""
    return np.where(np.isfinite(counts), request_states(counts, request), UNKNOWN)


def states_between(within: np.ndarray, request: int, parts: int) -> np.ndarray:
    """Return the states of a request at the ends of all but the last of the ``parts`` of slots, shape (slots, parts - 1).

    ``within`` (slots, m) are the evenly spaced counts read in each slot. With fewer than one count a
    part the states are `UNKNOWN`.
    """
    slots, each = len(within), within.shape[1] + 1
    if each < parts:
        return np.full((slots, parts - 1), UNKNOWN)
    return known_states(within[:, np.arange(1, parts) * each // parts - 1], request)


def state_ages(states: np.ndarray) -> np.ndarray:
    """Return the ages of consecutive states, (..., n): 0 right after a change, at most `AGES` - 1, also if unknown.

    >>> state_ages(np.array([2, 2, 0, 0, 0, 2, 1])).tolist()
    [2, 2, 0, 1, 2, 0, 0]
    """
    ages = np.full(states.shape, AGES - 1)
    changed = (np.diff(states) != 0) & (states[..., 1:] != UNKNOWN) & (states[..., :-1] != UNKNOWN)
    for age in range(AGES - 2, -1, -1):
        ages[..., age + 1 :][changed[..., : changed.shape[-1] - age]] = age
    return ages


def launch_state(granted: int, requested: int) -> int:
    """Return the state of a request of which ``granted`` of ``requested`` instances run.

    >>> launch_state(2, 4), launch_state(4, 4), launch_state(0, 4)
    (1, 2, 0)
    """
    return NONE if granted <= 0 else ALL if granted >= requested else PART


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

    Element ``first`` is slot 0 of the job. ``is_counted`` are the slots whose count was read.
    ``prior`` are the archetypes of such a request, ``counts`` (3,) the instances that stand for
    none, part and all of it, ``newest_hours`` the age of the newest count now, None without a count.
    ``between`` (slots, parts - 1) are the states between each slot and the slot before. ``ratings`` are
    the provider's ratings of the market, None without ratings.
    """

    request: int
    states: np.ndarray
    prior: Archetypes
    first: int = 0
    is_counted: np.ndarray
    counts: np.ndarray
    between: np.ndarray
    newest_hours: float | None = None
    ratings: SlotRatings | None = None

    @classmethod
    def of(
        cls,
        request: int,
        launches: Iterable[Launch],
        slots: int,
        prior: Archetypes,
        counts: np.ndarray | None = None,
        within: np.ndarray | None = None,
        first: int = 0,
        newest_hours: float | None = None,
        ratings: SlotRatings | None = None,
    ) -> Launches:
        """Return the evidence of a job of ``slots`` slots; of several launches in a slot the last is used.

        ``counts`` are the counts read for consecutive slots, NaN where none was read; element ``first``
        is slot 0 of the job. ``within`` (slots, m) are the counts read between each slot and the slot
        before. Where a slot has a launch and a count, the launch is used.
        """
        launches_by_slot = list(launches)
        read = np.full(slots, np.nan) if counts is None else counts
        before = max([first, *(launch.held - launch.slot for launch in launches_by_slot)])
        every = np.full(before + slots, np.nan)
        every[before - first : before - first + len(read)] = read[: first + slots]
        is_counted, states = np.isfinite(every), known_states(every, request)
        between = np.full((len(every), prior.parts - 1), UNKNOWN)
        if within is not None:
            inside = states_between(within[: first + slots], request, prior.parts)
            between[before - first : before - first + len(inside)] = inside
        for launch in launches_by_slot:
            place = before + launch.slot
            states[place - launch.held : place] = ALL
        for launch in launches_by_slot:
            states[before + launch.slot] = launch.state
        return cls(
            request=request,
            states=states,
            prior=prior,
            first=before,
            is_counted=is_counted,
            counts=_typical_counts(every[is_counted], request),
            between=between,
            newest_hours=newest_hours,
            ratings=ratings,
        )

    def until(self, slot: int) -> np.ndarray:
        """Return the states up to the job's slot ``slot``, which is the last element."""
        return self.states[: self.first + slot + 1]

    def between_until(self, slot: int) -> np.ndarray:
        """Return the states between the slots up to the job's slot ``slot``."""
        return self.between[: self.first + slot + 1]

    def launched_slots(self, slot: int) -> int:
        """Return the number of slots up to ``slot`` whose state is known from own launches."""
        launched = (self.until(slot) != UNKNOWN) & ~self.is_counted[: self.first + slot + 1]
        return int(launched.sum())

    def counted_slots(self, slot: int) -> int:
        """Return the number of counts up to ``slot``."""
        return int(self.is_counted[: self.first + slot + 1].sum())

    def has_count(self, slot: int) -> bool:
        """Return whether the count of the job's slot ``slot`` was read."""
        return bool(self.is_counted[self.first + slot])

    def ratings_at(self, slot: int) -> SlotRatings | None:
        """Return the ratings that are evidence in the job's slot ``slot``, None if there are none.

        Ratings are evidence where no count was read for the slot, a score only until the next own launch
        or count.
        """
        if self.ratings is None or slot < self.ratings.slot or self.has_count(slot):
            return None
        slots_ago = self.ratings.slots_ago + slot - self.ratings.slot
        is_superseded = (self.until(slot)[-1 - slots_ago :] != UNKNOWN).any()
        score = None if is_superseded else self.ratings.score
        if score is None and self.ratings.band is None:
            return None
        return replace(self.ratings, slot=slot, slots_ago=slots_ago, score=score)


def request_counts(request: int) -> np.ndarray:
    """Return the counts that stand for none, part and all of a request without any count, shape (3,).

    >>> request_counts(8), request_counts(1)
    (array([0, 4, 8]), array([0, 0, 1]))
    """
    return np.array([0, request // 2, request])


def _typical_counts(counts: np.ndarray, request: int) -> np.ndarray:
    """Return the median count in each state of a request, shape (3,), or that of `request_counts` without a count."""
    typical, states = request_counts(request), request_states(counts, request)
    for state in (PART, ALL):
        counts_in_state = counts[states == state]
        if len(counts_in_state):
            typical[state] = int(np.median(counts_in_state))
    return typical


def own_transitions(states: np.ndarray, chain: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return the weighted transitions by age (AGES, 3, 3) between known ``states``, the last that of the present slot.

    The weight halves every `HALF_LIFE_SLOTS`. Two launches several slots apart count as one
    transition, spread over the slots between them by its probability under the mean ``chain``
    (AGES, 3, 3), and over the ages in proportion to the ``share`` (AGES, 3) of time in each.
    """
    weighted = np.zeros((AGES, STATES, STATES))
    states = states[-MOST_SLOTS:]
    known_slots = np.flatnonzero(states != UNKNOWN)
    if len(known_slots) < 2:
        return weighted
    apart, age = np.diff(known_slots), len(states) - 1 - known_slots[1:]
    weight = 0.5 ** (age / HALF_LIFE_SLOTS)
    before, after = states[known_slots[:-1]], states[known_slots[1:]]
    adjacent = apart == 1
    ages = state_ages(states)[known_slots[:-1]]
    np.add.at(weighted, (ages[adjacent], before[adjacent], after[adjacent]), weight[adjacent])
    far = (apart > 1) & (apart <= MOST_APART)
    pairs, weight = np.column_stack([before, after, apart])[far], weight[far]
    of_age = share / np.maximum(share.sum(axis=0), 1e-12)
    mean = (of_age[:, :, None] * chain).sum(axis=0)
    for first, last, slots in sorted(set(map(tuple, pairs.tolist()))):
        same = (pairs == (first, last, slots)).all(axis=1)
        weighted += weight[same].sum() * of_age[:, :, None] * _mean_transition(first, last, slots, mean)
    return weighted


def _mean_transition(before: int, after: int, apart: int, chain: np.ndarray) -> np.ndarray:
    """Return the expected transition (3, 3) in a slot between two states that are ``apart`` slots from each other."""
    onward = np.empty((apart, STATES))
    onward[-1] = np.eye(STATES)[after]
    for k in range(apart - 2, -1, -1):
        onward[k] = chain @ onward[k + 1]
    transitions, state = np.zeros((STATES, STATES)), np.eye(STATES)[before]
    for k in range(apart):
        joint = state[:, None] * chain * onward[k]
        joint /= joint.sum()
        transitions += joint
        state = joint.sum(axis=0)
    return transitions / apart


def transitions_between(states: np.ndarray, between: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the weighted transitions per part of a slot, by age (AGES, 3, 3), and the age of the present state.

    ``states`` (slots,) end with the present slot's, ``between`` (slots, parts - 1) are those between
    each slot and the slot before. The weight halves every `HALF_LIFE_SLOTS`.
    """
    parts = np.column_stack([between, states])[-MOST_SLOTS:]
    slots, each = parts.shape
    path, age = parts.ravel(), slots - 1 - np.arange(parts.size) // each
    ages, is_known = state_ages(path), path != UNKNOWN
    pairs = is_known[:-1] & is_known[1:] & (each > 1)
    weighted = np.zeros((AGES, STATES, STATES))
    np.add.at(
        weighted,
        (ages[:-1][pairs], path[:-1][pairs], path[1:][pairs]),
        0.5 ** (age[1:][pairs] / HALF_LIFE_SLOTS),
    )
    return weighted, int(ages[-1])
