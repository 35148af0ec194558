"""How many spot and on-demand GPU instances to run in the next slot, so that a job meets its deadline at the least cost.

The layers: `slackwater.warehouse`, `slackwater.forecasting`, `slackwater.optimization`, `slackwater.flows`; each is loaded when it
is first used.
"""

from importlib import import_module
from types import ModuleType

__all__ = ["flows", "forecasting", "optimization", "warehouse"]


def __getattr__(name: str) -> ModuleType:
    """Return a layer; raises `AttributeError` for another name."""
    if name not in __all__:
        raise AttributeError(f"module 'slackwater' has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    """Return the names of the layers."""
    return __all__
