"""Registry of the selection's learners by name (M5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slackwater.optimization.selection.contract import Learner, Weights, weigh
from slackwater.optimization.selection.learners.adahedge import AdaHedge
from slackwater.optimization.selection.learners.blend import Blend
from slackwater.optimization.selection.learners.exponentiated import (
    Discounted,
    ExponentiatedGradient,
    FixedShare,
)
from slackwater.optimization.selection.learners.squint import Squint
from slackwater.warehouse.errors import SettingsError

#: None of these learners needs the number of rounds; fixed share is tuned for 1,000 rounds with
#: three changes.
LEARNERS: dict[str, Learner[Any]] = {
    learner.name: learner
    for learner in (
        AdaHedge(),
        Squint(),
        ExponentiatedGradient(),
        FixedShare(),
        Discounted(),
        Blend(learners=(AdaHedge(), *(FixedShare(haste=haste) for haste in (1.0, 8.0, 64.0, 512.0)))),
    )
}
#: Default learner of the selection: the best on the training part of the open data over jobs in
#: random order, through a switch of market, and in the order that is hardest to unlearn
#: (`studies.rounds.train_learners`).
DEFAULT_LEARNER = "blend"


def learner_named(name: str) -> Learner[Any]:
    """Return the learner of that name (``default``: the default learner); raises `SettingsError` if unknown."""
    known = DEFAULT_LEARNER if name == "default" else name
    if known not in LEARNERS:
        raise SettingsError(f"no learner {name!r}", expected=f"one of {', '.join(LEARNERS)}")
    return LEARNERS[known]


def learn(utilities: Mapping[str, Sequence[float]], *, learner: str = "default") -> Weights:
    """Return the weights of the policies after the given rounds (M5.2).

    ``utilities`` maps every policy name to its utility in each round, a share in [0, 1] (see
    `normalised`). Raises `SettingsError` for values outside [0, 1] and for policies with different
    numbers of rounds.
    """
    rounds = {len(own) for own in utilities.values()}
    if len(rounds) > 1:
        raise SettingsError(f"policies with {sorted(rounds)} rounds", expected="every policy in every round")
    table = np.array(list(utilities.values()), dtype=float).T
    return weigh(learner_named(learner), list(utilities), table)[-1]
