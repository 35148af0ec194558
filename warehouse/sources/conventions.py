"""What is known about sources that their files do not say: patterns on the source label, with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache

from warehouse.packaged import read_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Conventions:
    """Glob patterns (case-sensitive, ``*`` also matches ``/``) on the source label.

    ``no_clock``: the time of day is unknown, so hour and weekday mean nothing. ``price_of_every_probe``: the price was
    read at every probe and stored when it changed, so it holds for as long as the same source's probes go on.
    """

    no_clock: tuple[str, ...] = ()
    price_of_every_probe: tuple[str, ...] = ()

    def real_clock(self, source: str) -> bool:
        """Whether hour of day and weekday of this source mean anything."""
        return not matches(source, self.no_clock)

    def probed_price(self, source: str) -> bool:
        """Whether this source's prices were read at each of its probes."""
        return matches(source, self.price_of_every_probe)


def matches(source: str, patterns: tuple[str, ...]) -> bool:
    """True if any pattern matches the source label."""
    return any(fnmatchcase(source, pattern) for pattern in patterns)


@cache
def known_conventions() -> Conventions:
    """What ``warehouse/sources/data/conventions.toml`` says, with a reason for each pattern."""
    content = read_data(__package__, "conventions")
    return Conventions(
        no_clock=tuple(str(entry["source"]) for entry in content["no_clock"]),
        price_of_every_probe=tuple(str(entry["source"]) for entry in content["price_of_every_probe"]),
    )
