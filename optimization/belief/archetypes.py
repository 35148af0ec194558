"""Archetypes: transitions of the availability of measured markets between slots, for a request (M13.2)."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

import numpy as np

#: States of a request: none, part or all of its instances are available.
NONE, PART, ALL = 0, 1, 2
STATES: Final = 3
#: Sizes of requests, and lengths of slots in minutes, for which transitions are shipped.
REQUESTS: Final = (1, 2, 4, 8, 16)
STEPS: Final = (10, 30, 60)
#: Length in minutes of the parts of a slot, between which availability changes, and maximum number of parts.
PART_MINUTES, MOST_PARTS = 10.0, 6
#: Ages of a state: in its first slot, in its second, and later; between slots likewise in parts.
AGES: Final = 3
#: Strength of the pooled chain in the rows of an archetype, in slots.
TOWARD_POOLED: Final = 2.0
#: Probability of a transition that no measured market made.
UNSEEN: Final = 1e-4


def request_states(counts: np.ndarray, request: int) -> np.ndarray:
    """Return the state of a request at each count."""
    return np.where(counts >= request, ALL, np.where(counts >= 1, PART, NONE))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Archetypes:
    """Chains of the measured markets for a request and a slot length.

    ``chain`` (A, AGES, 3, 3) are the transitions per slot by the age of the state, ``weight`` (A,) the
    probabilities of the archetypes before any evidence, and ``share`` (A, AGES, 3) the share of time
    in each age and state. A slot has ``parts`` parts; ``inside`` (A, AGES, 3, 3) are the transitions per part.
    """

    chain: np.ndarray
    weight: np.ndarray
    share: np.ndarray
    inside: np.ndarray
    parts: int

    def __len__(self) -> int:
        return len(self.weight)


#: Columns of transitions in the shipped file: age, state before and state after.
CELLS: Final = tuple(
    f"age{age}_{i}{j}" for age in range(1, AGES + 1) for i in range(STATES) for j in range(STATES)
)


@dataclass(frozen=True, slots=True)
class _Row:
    """Transitions (AGES, 3, 3) of a measured series, by age, for a request and a slot length in minutes."""

    series: tuple[str, ...]
    request: int
    step: int
    counted: np.ndarray


@cache
def _rows() -> tuple[_Row, ...]:
    text = files("slackwater.optimization").joinpath("data/archetypes.csv").read_text(encoding="utf-8")
    rows = []
    for row in csv.DictReader(text.splitlines()):
        cells = [float(row[name]) for name in CELLS]
        counted = np.array(cells).reshape(AGES, STATES, STATES)
        series = tuple(row[key] for key in ("source", "instance_type", "region", "zone"))
        rows.append(_Row(series, int(row["request"]), int(row["step_minutes"]), counted))
    return tuple(rows)


def archetypes(request: int, slot_hours: float, without: Collection[str] = ()) -> Archetypes:
    """Return the archetypes for ``request`` instances and slots of ``slot_hours``, without the series of some zones.

    A series of smaller capacity is scaled: all of its capacity stands for all of the request. Every
    pair of source and instance type has the same weight. Rows are shrunk by `TOWARD_POOLED` slots
    to the pooled chain. Slot lengths that are not shipped are powers of the next shorter one.
    """
    return _archetypes(request, round(slot_hours * 60.0, 6), frozenset(without))


@cache
def _archetypes(request: int, minutes: float, without: frozenset[str]) -> Archetypes:
    counted = _transition_counts(request, minutes, without)
    kinds = Counter(series[:2] for series in counted)
    weight = np.array([1.0 / kinds[series[:2]] for series in counted])
    weight /= weight.sum()
    parts = int(min(MOST_PARTS, max(1.0, minutes // PART_MINUTES)))
    inside = _transition_counts(request, minutes / parts, without)
    transitions = np.array(list(counted.values()))
    nothing = np.zeros((AGES, STATES, STATES))
    return Archetypes(
        chain=_chains(transitions, weight, minutes),
        weight=weight,
        share=transitions.sum(axis=3) / transitions.sum(axis=(1, 2, 3))[:, None, None],
        inside=_chains(
            np.array([inside.get(series, nothing) for series in counted]), weight, minutes / parts
        ),
        parts=parts,
    )


def _shipped_length(minutes: float) -> int:
    """Return the longest shipped slot length of at most ``minutes``, else the shortest."""
    return max((step for step in STEPS if step <= minutes), default=STEPS[0])


def _transition_counts(
    request: int, minutes: float, without: frozenset[str]
) -> dict[tuple[str, ...], np.ndarray]:
    """Return by series the numbers of transitions (AGES, 3, 3) for the shipped request nearest in ratio."""
    chosen: dict[tuple[str, ...], _Row] = {}
    for row in _rows():
        if row.step != _shipped_length(minutes) or row.series[-1] in without or not row.counted.any():
            continue
        known = chosen.get(row.series)
        if known is None or _distance(row.request, request) < _distance(known.request, request):
            chosen[row.series] = row
    return {series: row.counted for series, row in chosen.items()}


def _chains(counted: np.ndarray, weight: np.ndarray, minutes: float) -> np.ndarray:
    """Return the chains over ``minutes`` from numbers of transitions by age, shrunk toward the pooled chain."""
    length = np.maximum(counted.sum(axis=(1, 2, 3)), 1e-9)
    pooled = np.tensordot(weight / length, counted, axes=1) + UNSEEN
    pooled /= pooled.sum(axis=-1, keepdims=True)
    chain = counted + TOWARD_POOLED * pooled
    chain /= chain.sum(axis=-1, keepdims=True)
    return _chains_over(chain, minutes / _shipped_length(minutes))


def _distance(n: int, request: int) -> float:
    return abs(float(np.log(n / request)))


def _chains_over(chain: np.ndarray, steps: float) -> np.ndarray:
    """Return the chains over ``steps`` slots: a share of the changes if less than 1, else a power."""
    if steps < 1.0:
        return np.eye(STATES) + steps * (chain - np.eye(STATES))
    far = np.linalg.matrix_power(with_ages(chain), round(steps))
    return np.asarray(far.reshape(len(chain), AGES, STATES, AGES, STATES).sum(axis=3))


def with_ages(rows: np.ndarray) -> np.ndarray:
    """Return transitions (A, AGES, 3, 3) as chains on ages and states, (A, 3 AGES, 3 AGES)."""
    extended = np.zeros((len(rows), AGES, STATES, AGES, STATES))
    for age in range(AGES):
        extended[:, age, :, 0] = rows[:, age] * (1.0 - np.eye(STATES))
        extended[:, age, :, min(age + 1, AGES - 1)] += rows[:, age] * np.eye(STATES)
    return extended.reshape(len(rows), AGES * STATES, AGES * STATES)
