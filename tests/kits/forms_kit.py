"""Parameters of a test whose further values are long forms."""

from collections.abc import Iterable

import pytest


def quick_first(values: Iterable, count: int = 1) -> list:
    """Return the values with all after the first ``count`` marked as slow; a tuple is a value for each name."""
    return [
        value
        if place < count
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
        for place, value in enumerate(values)
    ]
