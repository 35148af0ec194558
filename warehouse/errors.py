"""Every error the project raises on purpose.

::

    SlackwaterError            root; the command line prints it as one line and exits with 2
    ├── InputError             something the user gave cannot be used
    │   ├── SourceFileError    a file of a source: names the file, the line and the remedy
    │   ├── MarketError        a market that is unknown, ambiguous or has too little data
    │   ├── JobError           a job that contradicts itself
    │   └── SettingsError      a setting or option out of range
    ├── FetchError             a live source could not be read: network, refusal, an answer that is not of its form
    ├── HistoryError           a history that breaks its contract (order, time zone, step, sign)
    ├── ForecastError          a forecast that breaks its contract (shape, crossing quantiles, bounds)
    ├── AuditError             a plan or an outcome that does not add up
    ├── PolicyError            a policy that asks for what cannot be held
    └── StoreError             the warehouse file
        ├── StoreLockedError   another process holds it
        ├── SchemaError        it was written by a newer version
        └── DamagedStoreError  it is not a readable warehouse
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType


class SlackwaterError(Exception):
    """Root of all errors: what was found, what was expected, and what to do about it."""

    def __init__(self, found: str, *, expected: str = "", remedy: str = "") -> None:
        self.found = found
        self.expected = expected
        self.remedy = remedy
        parts = [found]
        if expected:
            parts.append(f"expected {expected}")
        if remedy:
            parts.append(remedy)
        super().__init__("; ".join(parts))


def nearest(name: str, known: Iterable[str], *, most: int = 3) -> str:
    """The known names that a misspelled one is most likely meant to be, joined by commas; the first ones where none is near.

    >>> nearest("risk_pahts", ["horizon", "risk_paths", "seed"])
    'risk_paths'
    """
    from difflib import get_close_matches

    names = list(known)
    return ", ".join(get_close_matches(name, names, n=most) or names[:most])


def why_raised(error: Exception) -> str:
    """An error in one line, for an answer that goes on without what failed."""
    if isinstance(error, MemoryError):
        return f"not enough memory: {str(error) or 'an array or list that is too large'}"
    return str(error) if isinstance(error, SlackwaterError) else f"{type(error).__name__}: {error}"


class InputError(SlackwaterError):
    """Something the user gave cannot be used."""


class SourceFileError(InputError):
    """A file of a source cannot be read; names the file, the line (1-based, 0 = whole file) and the remedy."""

    def __init__(
        self, file: Path | str, line: int, found: str, *, expected: str = "", remedy: str = ""
    ) -> None:
        self.file = str(file)
        self.line = line
        where = f"{file}, line {line}" if line else str(file)
        super().__init__(f"{where}: {found}", expected=expected, remedy=remedy)


class MarketError(InputError):
    """A market that is unknown, ambiguous, or has too little data for what was asked."""


class JobError(InputError):
    """A job that contradicts itself or asks for what its form does not allow."""


def unknown_job(name: str, known: Sequence[str]) -> JobError:
    """Return the error for a name that no stored job has."""
    return JobError(
        f"no job {name!r} in the warehouse",
        expected=f"a known job ({', '.join(known[:5]) or 'none'})",
        remedy="`slackwater job list`",
    )


def unknown_market(text: str, known: Iterable[str], *, at: object = None) -> MarketError:
    """Return the error for a market that was never observed, or not before ``at``; it names known ones of the same type."""
    key = text.partition("@")[0]
    near = [one for one in dict.fromkeys(known) if one.split("/")[-1] == key.split("/")[-1]][:3]
    return MarketError(
        f"market {text!r} has no observations" + ("" if at is None else f" known at {at}"),
        expected=f"for example {', '.join(near)}" if near else "a market that was ingested",
        remedy=f'write markets = ["{key}"]: a pattern stands in markets'
        if any(mark in text for mark in "*?[")
        else "`slackwater markets` lists them",
    )


class SettingsError(InputError):
    """A setting or command-line option that is out of range."""


class FetchError(SlackwaterError):
    """A live source could not be read: the network, a refusal, or an answer that is not of its form.

    ``again``: asking again may help (throttled, cut, out of order); a refusal stays one. ``code``: the server's own word for it.
    """

    def __init__(
        self, found: str, *, expected: str = "", remedy: str = "", again: bool = False, code: str = ""
    ) -> None:
        super().__init__(found, expected=expected, remedy=remedy)
        self.again = again
        self.code = code


class HistoryError(SlackwaterError):
    """A history that breaks its contract: order, time zone, step, sign or alignment."""


class ForecastError(SlackwaterError):
    """A forecast that breaks its contract: shape, crossing quantiles or bounds."""


class AuditError(SlackwaterError):
    """A plan or an outcome whose own numbers do not add up (M3.5)."""


class PolicyError(SlackwaterError):
    """A policy that asks for instances that cannot be held."""


class StoreError(SlackwaterError):
    """The warehouse file cannot do what was asked."""


class OldSchemaError(StoreError):
    """The warehouse file was written by an older version of the program and has not been brought up to date."""


class StoreLockedError(StoreError):
    """Another process holds the warehouse file."""


class SchemaError(StoreError):
    """The warehouse file was written by a newer version of the program."""


class DamagedStoreError(StoreError):
    """The file is not a readable warehouse."""


class Kept:
    """Within it what is raised is kept, for somebody else to raise or tell: the thread that waits for this one."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Kept:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error
        return True
