"""Replay of policies on recorded markets: time, progress, cost, hindsight, ledger (M2.4, M4.7, M5.5)."""

import sys
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    """Type of this package: calling ``slackwater.optimization.replay`` calls `slackwater.optimization.replay.run.replay`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from slackwater.optimization.replay.run import replay

        return replay(*args, **options)


sys.modules[__name__].__class__ = _Verb
