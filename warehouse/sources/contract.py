"""What a source of observations is: files in, canonical Arrow tables out, nothing lost on the way.

A source only translates. It does no casting, no de-duplication and no filtering of its own: every row it finds goes into
a `Batch` as found (text where the file has text), with the file and line it came from. The store casts, validates,
counts and keeps the rows that cannot be used. A file that is not of the source's format at all is refused with
`SourceFileError`, which names the file, the line and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import pyarrow as pa

Kind = Literal["price", "availability", "rejected"]

#: Columns of a ``price`` batch. All may be text; ``observed_at`` ISO 8601 text or a timestamp (naive text = UTC).
PRICE_COLUMNS = (
    "source", "provider", "region", "zone", "instance_type", "product", "observed_at",
    "price_usd", "on_demand_usd", "known_at", "file", "line",
)  # fmt: skip
#: Columns of an ``availability`` batch. ``kind``: probe, held, offers; or score, a placement score that is no count of instances
#: and is kept apart from them (``available`` = the score, ``capacity`` = its best value).
AVAILABILITY_COLUMNS = (
    "source", "provider", "region", "zone", "instance_type", "observed_at", "available", "capacity",
    "gap_seconds", "kind", "truncated", "known_at", "file", "line",
)  # fmt: skip
#: Columns of a ``rejected`` batch: rows that could not even be taken apart.
REJECTED_COLUMNS = ("file", "line", "raw", "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One chunk of rows of one kind, with the columns named above (missing optional ones are null)."""

    kind: Kind
    table: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user says about files that do not say it themselves.

    ``values`` holds the source's own named options (``zone``, ``instance_type``, ``start``, ...), each documented by the source.
    """

    values: Mapping[str, str]

    def get(self, name: str) -> str | None:
        """The option's text, or None if it was not given."""
        return self.values.get(name)


class Source(Protocol):
    """A reader of one file format or API."""

    name: str
    """The word used on the command line."""
    options: Mapping[str, str]
    """Option name -> one sentence of help, for the options it understands."""

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """The files this source reads below ``paths`` (files or folders), sorted; raises `SourceFileError` if none."""
        ...

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        """Yield the rows of one file in chunks of bounded size; raises `SourceFileError` if it is not of this format."""
        ...

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        """In words, what had to be assumed to read this file (for example an undated trace counting from 1970-01-01)."""
        ...
