"""Registry of the selection's learners by name (M5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.plugins import Registry

if TYPE_CHECKING:
    from slackwater.optimization.selection.contract import Learner

#: Entry points of learners in other packages: a function or class without parameters that creates one.
GROUP = "slackwater.learners"
#: Name -> learner with its default parameters, imported at first use. None of them needs the number
#: of rounds; fixed share is tuned for 1,000 rounds with three changes.
LEARNERS: Registry[Learner[Any]] = Registry(
    {
        "adahedge": "adahedge:AdaHedge",
        "anytime": "exponentiated:ExponentiatedGradient",
        "fixed-share": "exponentiated:FixedShare",
        "blend": "blend:default_blend",
    },
    package=__name__,
    group=GROUP,
    make=lambda create: create(),
)
#: Default learner of the selection: the best on the training part of the open data over jobs in random order,
#: through a switch of market, and in the order that is hardest to unlearn (`studies.rounds.train_learners`).
DEFAULT_LEARNER = "blend"


def learner_named(name: str) -> Learner[Any]:
    """Return the learner of that name (``default``: the default learner); raises `SettingsError` if unknown."""
    known = DEFAULT_LEARNER if name == "default" else name
    if known not in LEARNERS:
        raise SettingsError(f"no learner {name!r}", expected=f"one of {', '.join(LEARNERS)}")
    return LEARNERS[known]
