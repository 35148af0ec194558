"""Differences between two normalised answers, as readable lines."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """One difference: path, old value and new value; `relative` is infinite unless both are figures."""

    path: str
    old: Any
    new: Any
    relative: float = float("inf")

    def line(self, width: int = 100) -> str:
        """`path: old -> new (relative difference)`."""
        told = "" if self.relative == float("inf") else f"  ({self.relative:+.2g})"
        return f"{self.path}: {_short(self.old, width)} -> {_short(self.new, width)}{told}"


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


ABSENT = _Absent()


def differences(
    old: Any,
    new: Any,
    *,
    relative: float = 1e-9,
    absolute: float = 1e-9,
    added_ok: bool = False,
    path: str = "$",
) -> Iterator[Difference]:
    """Yield every difference between `old` and `new`.

    Figures are equal if they differ by at most `relative` of the larger figure, or by at most `absolute`.
    With `added_ok`, new keys are no difference.
    """
    options = {"relative": relative, "absolute": absolute, "added_ok": added_ok}
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in old:
            yield from differences(old[key], new.get(key, ABSENT), path=f"{path}.{key}", **options)
        for key in new:
            if key not in old and not added_ok:
                yield Difference(f"{path}.{key}", ABSENT, new[key])
    elif isinstance(old, list) and isinstance(new, list):
        yield from _lists(old, new, path, options)
    elif _is_figure(old) and _is_figure(new):
        gap = abs(new - old)
        if gap > absolute and gap > relative * max(abs(old), abs(new)):
            yield Difference(path, old, new, (new - old) / abs(old) if old else float("inf"))
    elif type(old) is not type(new) or old != new:
        yield Difference(path, old, new)


def is_fitted(fitted: Mapping[str, float], difference: Difference) -> bool:
    """Return whether a fit on another processor may cause the difference: ``fitted`` maps path patterns to tolerances."""
    return any(
        abs(difference.relative) <= apart and fnmatch.fnmatchcase(difference.path, pattern)
        for pattern, apart in fitted.items()
    )


def _lists(old: list[Any], new: list[Any], path: str, options: dict[str, Any]) -> Iterator[Difference]:
    names = identity(old, new)
    if names:
        before = {_key(row, names): row for row in old}
        after = {_key(row, names): row for row in new}
        if list(before) != list(after) and set(before) == set(after):
            moved = next(place for place, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
            yield Difference(f"{path} (order, from entry {moved})", list(before)[moved], list(after)[moved])
        for key, row in before.items():
            yield from differences(row, after.get(key, ABSENT), path=f"{path}[{key}]", **options)
        for key, row in after.items():
            if key not in before:
                yield Difference(f"{path}[{key}]", ABSENT, row)
        return
    if len(old) != len(new):
        yield Difference(f"{path} (length)", len(old), len(new))
    for place, (a, b) in enumerate(zip(old, new, strict=False)):
        yield from differences(a, b, path=f"{path}[{place}]", **options)
    for place in range(len(new), len(old)):
        yield Difference(f"{path}[{place}]", old[place], ABSENT)
    for place in range(len(old), len(new)):
        yield Difference(f"{path}[{place}]", ABSENT, new[place])


def identity(old: list[Any], new: list[Any]) -> list[str]:
    """Return the fewest leading fields, of words or integers, that identify the records of each list."""
    rows = [*old, *new]
    if len(old) < 2 or not all(isinstance(row, Mapping) for row in rows):
        return []
    names: list[str] = []
    for name in old[0]:
        values = [row.get(name) for row in rows]
        if not all(isinstance(value, (str, int)) and not isinstance(value, bool) for value in values):
            continue
        names.append(name)
        if all(len({_key(row, names) for row in part}) == len(part) for part in (old, new)):
            return names
    return []


def _key(row: Mapping[str, Any], names: list[str]) -> str:
    return " ".join(str(row[name]) for name in names)


def _is_figure(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(value: Any, width: int) -> str:
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 4]} ..."
