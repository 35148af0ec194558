"""Policies after other published ideas (M10), which decide no job; the product finds them by entry points."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slackwater.optimization.policies.contract import Policy
from slackwater.optimization.policies.pool import load_pool

#: Families after other published ideas, in the order of their pool file.
PUBLISHED_IDEAS = ("AdaSwitch", "RHIG", "Window", "Trust", "ROSS")


def published_policies() -> list[Policy[Any]]:
    """Return the members of the families that the experiments compare with the pool."""
    return load_pool(Path(__file__).parent / "pool.toml")
