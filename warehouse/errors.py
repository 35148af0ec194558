"""Exceptions that the project raises on purpose.

::

    SlackwaterError            root; the command line prints it in one line and exits with 2
    ├── InputError             unusable input from the user
    │   ├── SourceFileError    a file of a source: names the file, the line and the remedy
    │   ├── MarketError        a market that is unknown, ambiguous or has too little data
    │   ├── JobError           a contradictory job
    │   └── SettingsError      a setting or option out of range
    ├── FetchError             a live source could not be read: network, refusal, unexpected form of the answer
    ├── WorkerError            worker processes or a Dask cluster that cannot be used
    ├── HistoryError           a history that breaks its contract (order, time zone, step, sign)
    ├── ForecastError          a forecast that breaks its contract (shape, crossing quantiles, bounds)
    ├── AuditError             a plan or an outcome with inconsistent numbers
    ├── PolicyError            a policy that requests instances it cannot hold
    └── StoreError             the warehouse file
        ├── OldSchemaError     the file was written by an older version and not upgraded
        ├── StoreLockedError   another process has locked the file
        ├── SchemaError        the file was written by a newer version
        └── DamagedStoreError  the file is not a readable warehouse
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final


class SlackwaterError(Exception):
    """Root of all errors: the problem (``found``), the expected input, and the remedy."""

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
    """Return up to ``most`` known names similar to ``name``, joined by commas; "" if none is similar.

    >>> nearest("risk_pahts", ["horizon", "risk_paths", "seed"])
    'risk_paths'
    """
    from difflib import get_close_matches

    return ", ".join(get_close_matches(name, list(known), n=most))


def why_raised(error: Exception) -> str:
    """Return an error as one line of text, for results that continue without the failed part."""
    if isinstance(error, MemoryError):
        return f"not enough memory: {str(error) or 'an array or list that is too large'}"
    return str(error) if isinstance(error, SlackwaterError) else f"{type(error).__name__}: {error}"


class InputError(SlackwaterError):
    """Unusable input from the user."""


class SourceFileError(InputError):
    """Unreadable file of a source: names the file, the line (1-based, 0 = whole file) and the remedy."""

    def __init__(
        self, file: Path | str, line: int, found: str, *, expected: str = "", remedy: str = ""
    ) -> None:
        self.file = str(file)
        self.line = line
        where = f"{file}, line {line}" if line else str(file)
        super().__init__(f"{where}: {found}", expected=expected, remedy=remedy)


class MarketError(InputError):
    """Market that is unknown, ambiguous, or has too little data for the request."""


class JobError(InputError):
    """Job that contradicts itself or contains entries that its form does not allow."""


def unknown_job(name: str, known: Sequence[str]) -> JobError:
    """Return the error for a job name that is not stored in the warehouse."""
    return JobError(
        f"no job {name!r} in the warehouse",
        expected=f"a known job ({', '.join(known[:5]) or 'none'})",
        remedy="`slackwater job list`",
    )


#: The commands that put observations into a warehouse.
READ_SOME: Final = "read a price history with `slackwater ingest`, or simulate markets with `slackwater run`"


def no_observations() -> MarketError:
    """Return the error for a warehouse without observations."""
    return MarketError("the warehouse has no observations", remedy=READ_SOME)


def unknown_market(text: str, known: Iterable[str], *, at: object = None) -> MarketError:
    """Return the error for a market without observations, or without any before ``at``; it suggests markets of the same type."""
    key = text.partition("@")[0]
    near = [name for name in dict.fromkeys(known) if name.split("/")[-1] == key.split("/")[-1]][:3]
    return MarketError(
        f"market {text!r} has no observations" + ("" if at is None else f" known at {at}"),
        expected=f"for example {', '.join(near)}" if near else "a market that was ingested",
        remedy=f'write markets = ["{key}"]: a pattern stands in markets'
        if any(mark in text for mark in "*?[")
        else "`slackwater markets` lists them",
    )


class SettingsError(InputError):
    """Setting or command-line option out of range."""


class WorkerError(SlackwaterError):
    """Worker processes or a Dask cluster that cannot be reached, ended during the work, or lack modules."""


class FetchError(SlackwaterError):
    """Failure to read a live source: the network, a refusal, or an answer of unexpected form.

    ``again``: a retry may succeed (throttled, connection cut, server out of order); False for
    refusals. ``code``: the error code reported by the server.
    """

    def __init__(
        self, found: str, *, expected: str = "", remedy: str = "", again: bool = False, code: str = ""
    ) -> None:
        super().__init__(found, expected=expected, remedy=remedy)
        self.again = again
        self.code = code


class HistoryError(SlackwaterError):
    """History that breaks its contract: order, time zone, step, sign or alignment."""


class ForecastError(SlackwaterError):
    """Forecast that breaks its contract: shape, crossing quantiles or bounds."""


class AuditError(SlackwaterError):
    """Plan or outcome with inconsistent numbers (M3.5)."""


class PolicyError(SlackwaterError):
    """Policy that requests instances it cannot hold."""


class StoreError(SlackwaterError):
    """Failed operation on the warehouse file."""


class OldSchemaError(StoreError):
    """Warehouse file that was written by an older version of the program and has not been upgraded."""


class StoreLockedError(StoreError):
    """Warehouse file locked by another process."""


class SchemaError(StoreError):
    """Warehouse file that was written by a newer version of the program."""


class DamagedStoreError(StoreError):
    """File that is not a readable warehouse."""


class CaughtError:
    """Context manager that catches any exception and stores it in ``error``, e.g. to hand it over to a waiting thread."""

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> CaughtError:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.error = error
        return True
