"""A policy on a recorded market: time, progress, cost, hindsight, ledger (M2.4, M4.7, M5.5)."""

import sys
from types import ModuleType
from typing import Any


class _Verb(ModuleType):
    """``optimization.replay`` is a folder and the verb of the layer's face: called, it is `optimization.replay.run.replay`."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        from optimization.replay.run import replay

        return replay(*args, **options)


sys.modules[__name__].__class__ = _Verb
