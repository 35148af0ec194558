"""Learners that decide no job: the bandits (M10) by name, and all learners with full information that E3 compares."""

from __future__ import annotations

from typing import Any

from slackwater.optimization.selection.contract import Learner
from slackwater.optimization.selection.learners import LEARNERS
from slackwater.studies.learners.ar_ucb import ArUcb
from slackwater.studies.learners.contract import BanditLearner
from slackwater.studies.learners.exp3 import Exp3, Exp3IX, Exp3S

#: The learners of the product, discounting, and Squint: Koolen and van Erven (COLT 2015).
INFORMED: dict[str, Learner[Any]] = {
    name: LEARNERS[name] for name in ("adahedge", "squint", "anytime", "fixed-share", "discounted", "blend")
}
#: Learners that receive only the utility of the played policy. The product replays the whole pool
#: on every job; in E3 they show the benefit of replaying.
BANDITS: dict[str, BanditLearner[Any]] = {
    learner.name: learner
    for learner in (Exp3(), Exp3(haste=16.0), Exp3IX(), Exp3S(), ArUcb(), ArUcb(pooled=True))
}
