"""Options of a live source as the settings give them, read one by one with clear errors."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from warehouse.errors import FetchError, SettingsError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class Given:
    """The options of one source; an option it does not know, or of the wrong type, raises `SettingsError`."""

    def __init__(self, source: str, values: Mapping[str, Any], known: Mapping[str, str]) -> None:
        self._source = source
        self._values = values
        if unknown := sorted(set(values) - set(known)):
            raise SettingsError(
                f"option {unknown[0]!r} of the source {source!r}", expected=f"one of {', '.join(known)}"
            )

    def wrong(self, name: str, expected: str) -> SettingsError:
        """The error for an option that cannot be used."""
        return SettingsError(
            f"option {name} = {self._values.get(name)!r} of the source {self._source!r}", expected=expected
        )

    def has(self, name: str) -> bool:
        """Whether the option was given."""
        return self._values.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        """A text; the default if it was not given."""
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value.strip()

    def needed(self, name: str, expected: str) -> str:
        """A text that must be given."""
        value = self.text(name)
        if not value:
            raise self.wrong(name, expected)
        return value

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of some words, the first by default."""
        value = self.text(name, choices[0])
        if value not in choices:
            raise self.wrong(name, f"one of {', '.join(choices)}")
        return value

    def texts(self, name: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """A list of texts, or one text with commas."""
        value = self._values.get(name, list(default))
        if isinstance(value, str):
            value = value.split(",")
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            raise self.wrong(name, "a list of texts")
        return tuple(one.strip() for one in value if one.strip())

    def whole(self, name: str, default: int, *, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``."""
        value = self._values.get(name, default)
        if isinstance(value, str) and value.strip().isdecimal():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, f"a whole number from {low} to {high}")
        return value

    def seconds(self, name: str, default: float, *, low: float, high: float) -> float:
        """A number from ``low`` to ``high``."""
        value = self._values.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def table(self, name: str) -> dict[str, str]:
        """A table of texts and numbers, as texts; empty if it was not given."""
        value = self._values.get(name, {})
        if not isinstance(value, Mapping) or not all(
            isinstance(one, str | int | float) and not isinstance(one, bool) for one in value.values()
        ):
            raise self.wrong(name, "a table of texts")
        return {str(key): str(one) for key, one in value.items()}

    def url(self, name: str, default: str = "") -> str:
        """An http(s) address without a user or password in it, as those would be printed; a trailing slash is dropped."""
        value = self.text(name, default)
        try:
            parts = urlsplit(value)
            wrong = parts.scheme not in ("http", "https") or not parts.hostname or (parts.port or 0) < 0
        except ValueError:
            wrong = True
        else:
            wrong = wrong or "@" in parts.netloc
        if wrong:
            raise SettingsError(
                f"option {name} of the source {self._source!r} is no address",
                expected="http://host/... or https://host/... without user and password",
            )
        return value.rstrip("/")


def from_environment(text: str) -> tuple[str, tuple[str, ...]]:
    """A text with ``${NAME}`` replaced from the environment, and the values that went in; raises `FetchError` if one is unset."""
    used: list[str] = []

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if not found:
            raise FetchError(
                f"environment variable {match[1]} is not set",
                remedy="set it to the credential, or take it out of the feed's options",
            )
        used.append(found)
        return found

    return _VARIABLE.sub(value, text), tuple(used)
