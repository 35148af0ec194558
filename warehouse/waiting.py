"""How long something has been waited for: a counter that only goes forward and knows no date (M1.4)."""

from __future__ import annotations

import time


def steady_seconds() -> float:
    """Seconds since some moment, for bounds on waiting; no result may depend on it."""
    return time.monotonic()
