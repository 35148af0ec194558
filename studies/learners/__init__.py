"""Registry of the bandits by name (M10), which decide no job."""

from __future__ import annotations

from typing import Any

from slackwater.studies.learners.ar_ucb import ArUcb
from slackwater.studies.learners.contract import BanditLearner
from slackwater.studies.learners.exp3 import Exp3, Exp3IX, Exp3S

#: Learners that receive only the utility of the played policy. The product replays the whole pool
#: on every job; in E3 they show the benefit of replaying.
BANDITS: dict[str, BanditLearner[Any]] = {
    learner.name: learner
    for learner in (Exp3(), Exp3(haste=16.0), Exp3IX(), Exp3S(), ArUcb(), ArUcb(pooled=True))
}
