"""Mixture of the archetypes, each corrected by own launches: the belief about a request's availability (M13.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.special import gammaln

from slackwater.optimization.belief.archetypes import AGES, STATES, Archetypes, with_ages
from slackwater.optimization.belief.launches import (
    HALF_LIFE_SLOTS,
    UNKNOWN,
    own_transitions,
    state_ages,
    transitions_between,
)
from slackwater.optimization.belief.ratings import SlotRatings, rating_factors, state_likelihood
from slackwater.optimization.kernels.belief import request_steps, walk_inside, walk_states

#: Strength of an archetype compared with own transitions, in slots.
STRENGTH: Final = 4.0
#: Half-life of a market's chain, in slots, and the probability of a change in a slot: the market then has another archetype.
CHANGE_SLOTS: Final = 96.0
CHANGE_PROBABILITY: Final = 1.0 - 0.5 ** (1.0 / CHANGE_SLOTS)
#: Least share of time in a state, and least strength of a transition, so that none is impossible.
LEAST_SHARE: Final = 0.02
LEAST: Final = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mixture:
    """Belief about the states of a request: archetypes with their weight (A,), and their present age and state (A, AGES, 3).

    ``strength`` (A, AGES, 3, 3) are the parameters of the Dirichlet distributions of the rows of each
    archetype, by the age of the state; where ``is_certain`` the rows are these, normalised. ``inside`` (A, AGES, 3, 3) are the
    transitions per part of a slot by the age of the state, ``age`` is that of the present state.
    ``known`` is the number of slots with a known state. In every slot the market changes, with the
    half-life `CHANGE_SLOTS`, to one of ``others``, the archetypes without any evidence.
    """

    others: Archetypes
    inside: np.ndarray
    weight: np.ndarray
    strength: np.ndarray
    now: np.ndarray
    age: int = AGES - 1
    known: int = 0
    is_certain: bool = False

    @classmethod
    def of(
        cls,
        archetypes: Archetypes,
        states: np.ndarray,
        between: np.ndarray | None = None,
        ratings: SlotRatings | None = None,
    ) -> Mixture:
        """Return the belief after ``states`` of own launches, the last of which is the present slot's.

        ``between`` (slots, parts - 1) are the states between each slot and the slot before. ``ratings`` are
        the provider's in the present slot, without a score that is not newer than the known states.
        """
        prior, share = (
            np.tensordot(archetypes.weight, part, axes=1) for part in (archetypes.chain, archetypes.share)
        )
        transitions = own_transitions(states, prior, share)
        alpha = _strength(archetypes)
        known_slots = np.flatnonzero(states != UNKNOWN)
        log_weight = np.log(archetypes.weight) + _log_likelihood(transitions, alpha)
        if len(known_slots):
            aged = 0.5 ** ((len(states) - 1 - known_slots[0]) / HALF_LIFE_SLOTS)
            first = archetypes.share[:, :, states[known_slots[0]]].sum(axis=1)
            log_weight += aged * np.log(np.maximum(first, LEAST_SHARE))
        strength = alpha + transitions
        rows = strength / strength.sum(axis=3, keepdims=True)
        now, slots_ago = archetypes.share, 0
        if len(known_slots):
            now = _last_known(archetypes, states[: known_slots[-1] + 1])
            slots_ago = len(states) - 1 - int(known_slots[-1])
        if ratings is not None:
            trust = 1.0 / (1.0 + (0.5 ** ((len(states) - 1 - known_slots) / HALF_LIFE_SLOTS)).sum())
            fade = 0.5 ** (ratings.slots_ago / HALF_LIFE_SLOTS)
            log_weight += trust * np.log(rating_factors(archetypes, ratings, fade))
            if ratings.score is not None:
                joint = _advance(now, rows, slots_ago - ratings.slots_ago)
                joint = joint * state_likelihood(ratings.score) ** trust
                likelihood = joint.sum(axis=(1, 2))
                log_weight += np.log(likelihood)
                now, slots_ago = joint / likelihood[:, None, None], ratings.slots_ago
        now = _advance(now, rows, slots_ago)
        weight = np.exp(log_weight - log_weight.max())
        inside, age = STRENGTH * archetypes.inside, AGES - 1
        if between is not None:
            own_inside, age = transitions_between(states, between)
            inside = inside + own_inside
        return cls(
            others=archetypes,
            inside=inside / inside.sum(axis=-1, keepdims=True),
            weight=weight / weight.sum(),
            strength=strength,
            now=now,
            age=age,
            known=len(known_slots),
        )

    @property
    def rows(self) -> np.ndarray:
        """The mean transitions of each archetype by age, shape (A, AGES, 3, 3)."""
        return np.asarray(self.strength / self.strength.sum(axis=3, keepdims=True))

    @property
    def present(self) -> np.ndarray:
        """The probabilities of the states of the present slot, shape (3,)."""
        return np.asarray(self.weight @ self.now.sum(axis=1))

    def steps(self, slots: int) -> np.ndarray:
        """Return the transitions into each of the next ``slots`` slots, shape (slots, 3, 3).

        They are the mean over the archetypes, weighted by the probability of each in the state: so
        the marginals from the present are those of the archetypes' mean rows.
        """
        count, total = len(self.weight), len(self.weight) + len(self.others)
        share, other = np.zeros((total, AGES, STATES)), np.zeros(total)
        share[:count], other[count:] = self.weight[:, None, None] * self.now, self.others.weight
        rows = np.concatenate([self.rows, self.others.chain])
        least = LEAST * np.concatenate([self.weight, LEAST * self.others.weight])
        return request_steps(rows, least, share, other, CHANGE_PROBABILITY, slots)

    def sample(self, slots: int, *, paths: int, rng: np.random.Generator) -> np.ndarray:
        """Return sampled states of the present and the next ``slots`` slots, shape (paths, 1 + slots).

        Each path has its archetype and rows, and other rows after a change of the market.
        """
        count = len(self.weight)
        chains = np.where(rng.random((1 + slots, paths)) < CHANGE_PROBABILITY, count, -1)
        has_changed = chains == count
        chains[has_changed] += rng.choice(len(self.others), size=int(has_changed.sum()), p=self.others.weight)
        chains[0] = rng.permutation(_archetypes_by_weight(self.weight, paths, rng))
        return walk_states(
            np.cumsum(self.now.reshape(count, -1), axis=1),
            np.concatenate([self.strength, _strength(self.others)]),
            np.repeat([1.0 - self.is_certain, 1.0], [count, len(self.others)]),
            chains,
            rng.random((1 + slots, paths)),
        )

    def sample_inside(self, states: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return sampled states between the slots of paths ``states`` (paths, 1 + slots), shape (paths, slots, parts - 1).

        They follow the mixture's mean transitions per part of a slot, given the states at both ends.
        """
        chain = np.tensordot(self.weight, self.inside, axes=1)
        return walk_inside(states, self.age, chain, rng.random((*states[:, 1:].shape, self.others.parts - 1)))

    def draw(self, size: int, rng: np.random.Generator) -> list[Mixture]:
        """Return ``size`` equally likely beliefs, each that of a known market drawn from this belief."""
        which = _archetypes_by_weight(self.weight, size, rng)
        rows = _sample_rows(self.strength[which], rng)
        return [
            replace(
                self,
                inside=self.inside[[a]],
                weight=np.ones(1),
                strength=rows[[i]],
                now=self.now[[a]],
                is_certain=True,
            )
            for i, a in enumerate(which.tolist())
        ]


def _strength(archetypes: Archetypes) -> np.ndarray:
    """Return the parameters of the Dirichlet distributions of the rows without own transitions, (A, AGES, 3, 3)."""
    return np.maximum(STRENGTH * archetypes.chain, LEAST)


def _advance(now: np.ndarray, rows: np.ndarray, slots: int) -> np.ndarray:
    """Return the probabilities of age and state (A, AGES, 3) ``slots`` slots later, unchanged if there are none."""
    if slots <= 0:
        return now
    ahead = np.linalg.matrix_power(with_ages(rows), slots)
    return np.asarray((now.reshape(-1, 1, AGES * STATES) @ ahead).reshape(now.shape))


def _last_known(archetypes: Archetypes, states: np.ndarray) -> np.ndarray:
    """Return the probabilities of age and state in the last of ``states``, by archetype (A, AGES, 3).

    If the slot before is unknown, so is the age: it has the archetype's share of time in each age of that state.
    """
    state, distribution = states[-1], np.zeros(archetypes.share.shape)
    if len(states) > 1 and states[-2] != UNKNOWN:
        distribution[:, state_ages(states)[-1], state] = 1.0
        return distribution
    share = archetypes.share[:, :, state] + LEAST / AGES
    distribution[:, :, state] = share / share.sum(axis=1, keepdims=True)
    return distribution


def _archetypes_by_weight(weight: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of ``size`` archetypes in proportion to their weight, ascending."""
    at = (np.arange(size) + rng.random()) / size
    return np.minimum(np.searchsorted(np.cumsum(weight), at), len(weight) - 1)


def _sample_rows(strength: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return rows drawn from Dirichlet distributions, shape of ``strength``."""
    gamma = rng.standard_gamma(strength) + 1e-12
    return np.asarray(gamma / gamma.sum(axis=-1, keepdims=True))


def _log_likelihood(transitions: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Return the log of the marginal likelihood of transitions (AGES, 3, 3) under each archetype's Dirichlet rows, shape (A,)."""
    rows = gammaln(alpha.sum(axis=-1)) - gammaln(alpha.sum(axis=-1) + transitions.sum(axis=-1))
    cells = (gammaln(alpha + transitions) - gammaln(alpha)).sum(axis=-1)
    return np.asarray((rows + cells).sum(axis=(1, 2)))
