"""Values that must not be printed or stored, taken out of texts."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SECRET_NAME = re.compile(r"(?i)(key|token|secret|passw|credential)")
#: Shorter values of such variables are words of the language, and are no secrets.
_SHORTEST_SECRET = 8


class Secrets:
    """Values that must not be printed or stored; `scrub` takes them out of any text."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        found = os.environ if environment is None else environment
        self._values = {
            value
            for name, value in found.items()
            if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET
        }

    def add(self, value: str | None) -> None:
        """Keep one more value out of all texts."""
        if value:
            self._values.add(value)

    def scrub(self, text: str) -> str:
        """The text with every secret replaced by ``***``."""
        for value in sorted(self._values, key=len, reverse=True):
            text = text.replace(value, "***")
        return text
