"""Interface of a live source: an API queried at a logical time and read page by page, with a mark of the progress.

Like a `slackwater.warehouse.sources.contract.Source` it only translates: rows go into batches as found; the
store casts, checks and counts them. Instead of files it has `LiveSource.fetch`, which yields a
`FetchedPage` per answer. The caller commits every page together with the `Mark` of its part (a
region, an instance type), so that a fetch killed after any page continues with the next page.

There are two kinds of source (M1.2):

- a *history* returns the values between two times (``aws-spot``): it is read from the mark to the
  logical time;
- a *snapshot* returns the current values: its rows are observed at the logical time or, if the
  server's ``Date`` is more than one interval later, at that later time. A late answer is never
  dated earlier than it was given.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic

from pydantic import TypeAdapter

from slackwater.warehouse.amounts import parsed_decimal
from slackwater.warehouse.columns import because
from slackwater.warehouse.errors import FetchError
from slackwater.warehouse.sources.contract import Batch, OptionsT, help_of, read_options

if TYPE_CHECKING:
    from slackwater.warehouse.sources.live.transport import Transport

BELIEVED = timedelta(days=1)  # Maximum plausible difference between the server's clock and ours
WHOLE = "all"  # Name of the part of a source without parts
#: Maximum price in USD and maximum length of its text; larger values are no price.
_HIGHEST_USD = Decimal(1_000_000)
_LONGEST_NUMBER = 40
_MOST_NAMES = 5  # Maximum number of names in a note
_ISO_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})", re.IGNORECASE
)
#: Reasons why a row of a price list is not in force.
NOT_YET, NO_LONGER = "not yet in force", "no longer in force"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A listing that is being read: its time range (None for a snapshot), the token of its next page, and its opening time."""

    opened_at: datetime
    token: str
    since: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Progress of reading a part.

    ``followed_since``: rows observed from then on count as known when fetched, earlier rows are
    history. ``until``: the history is complete up to this time. ``done_at``: logical time of the
    last complete fetch. ``listing``: an interrupted listing. ``memory``: data that the source needs
    at the next fetch (for example the known series).
    """

    followed_since: datetime | None = None
    until: datetime | None = None
    done_at: datetime | None = None
    listing: Listing | None = None
    memory: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return JSON values: times as ISO 8601, absent values left out."""
        plain: dict[str, Any] = _MARKS.dump_python(self, mode="json", exclude_defaults=True)
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Mark:
        """Return the mark that `to_json` wrote."""
        return _MARKS.validate_python(plain)


_MARKS = TypeAdapter(Mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """Parameters of a fetch: options, logical time, interval of the feed, and mark of each part.

    ``since`` and ``until`` bound a range of history requested by hand; a snapshot ignores them.
    ``clock`` is the present time, by default the logical time.
    """

    options: Mapping[str, Any]
    at: datetime
    every: timedelta
    marks: Mapping[str, Mark] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    clock: datetime | None = None

    def mark(self, part: str) -> Mark:
        """Return the resume mark of a part; an empty mark if it was never read."""
        return self.marks.get(part, Mark())

    def is_done(self, part: str) -> bool:
        """Return whether the part was already read completely at this logical time."""
        return self.since is None and self.mark(part).done_at == self.at

    def token(self, part: str) -> str | None:
        """Return the token of the page where a snapshot continues: only if it was interrupted at this logical time."""
        own = self.mark(part).listing
        return own.token if own is not None and own.opened_at == self.at else None

    def observed_at(self, answered: datetime | None) -> datetime:
        """Return when a snapshot was true: the server's ``Date`` (``answered``), ours if they differ by over `BELIEVED`."""
        if answered is not None and not self.believes(answered):
            answered = self.clock
        if answered is not None and answered > self.at + self.every:
            return answered
        return self.at

    def believes(self, answered: datetime) -> bool:
        """Return whether a server's time is plausible, compared with ours."""
        return abs(answered - (self.clock or self.at)) <= BELIEVED


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPage:
    """An answer for a part, to be committed as a whole.

    ``token``: next page, None at the end of the part. ``since`` and ``end``: requested range of a history.
    ``memory``: replaces that of the mark, unless None. ``notes``: sentences for the record of the fetch.
    """

    part: str
    batches: tuple[Batch, ...]
    token: str | None = None
    since: datetime | None = None
    end: datetime | None = None
    memory: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFailed:
    """A part that could not be read, with the reason; the other parts continue."""

    part: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Sample request options and a sample response of the API, shown in the documentation and used by the contract tests.

    ``answer``: JSON, or XML if it starts with ``<``. ``credentials``: environment variables from
    which the source reads its credentials.
    """

    options: Mapping[str, Any]
    answer: str = ""
    credentials: tuple[str, ...] = ()


class LiveSource(ABC, Generic[OptionsT]):
    """A reader of an API; ``form`` is the model of its options."""

    name: str
    form: type[OptionsT]
    example: Example

    @property
    def options(self) -> Mapping[str, str]:
        """Return option name -> help text."""
        return help_of(self.form)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise `SettingsError` if the options are invalid; sends no request and needs no credentials."""
        read_options(self.name, self.form, options)

    def fetch(self, request: FetchRequest, transport: Transport) -> Iterator[FetchedPage | PartFailed]:
        """Yield the requested pages, part by part.

        Raises `SettingsError` for invalid options, `FetchError` if nothing can be read at all (no
        credentials, no network, a failed probe).
        """
        yield from self.pages(read_options(self.name, self.form, request.options), request, transport)

    def time_zone(self, options: Mapping[str, Any]) -> str:
        """Return the zone of times without offset: "UTC" if the API documents it, else ""."""
        return self.zone_of(read_options(self.name, self.form, options))

    def zone_of(self, options: OptionsT) -> str:
        """Return the `time_zone` of a source whose options define it."""
        return "UTC"

    def assumptions(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """Return sentences on the assumptions about the answers."""
        return self.assumed(read_options(self.name, self.form, options))

    @abstractmethod
    def pages(
        self, options: OptionsT, request: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """Yield the requested pages; parts completed at this logical time are skipped."""

    def assumed(self, options: OptionsT) -> tuple[str, ...]:
        """Return sentences on the assumptions about the answers; none if every record is explicit."""
        return ()


def next_page(token: str | None, seen: set[str | None], who: str, *, most: int | None = None) -> str | None:
    """Return the token of the next page and add it to ``seen``; raises `FetchError` if tokens repeat or pages exceed ``most``."""
    if token is not None and (token in seen or (most is not None and len(seen) >= most)):
        raise FetchError(
            f"{who} gave the same next page twice, or pages without end", expected="a new one a page"
        )
    seen.add(token)
    return token


# ---
# Conditions for a row of a price list to be a price of the requested product (M1.1): in force,
# positive, unambiguous.


class NoPrice(ValueError):
    """A row that cannot be used, with the ``reason``."""

    def __init__(self, code: str, *found: object) -> None:
        self.reason = because(code, *found)
        super().__init__(self.reason)


def price_of(found: object, name: str) -> Decimal:
    """Return a price in USD; raises `NoPrice` for no number, out of range, or 0, a placeholder of price lists."""
    try:
        usd = parsed_decimal(
            "" if found is None or isinstance(found, bool) else str(found)[: _LONGEST_NUMBER + 1]
        )
    except ValueError:
        raise NoPrice("value.not_number", f"{name} {_excerpt(found)}") from None
    if usd == 0:
        raise NoPrice("value.placeholder", name)
    if not 0 < usd <= _HIGHEST_USD or len(str(found)) > _LONGEST_NUMBER:
        raise NoPrice("value.not_price", f"{name} {_excerpt(found)}")
    return usd


def time_of(found: object, name: str) -> datetime | None:
    """Return an ISO 8601 time with an offset, None for an empty value; raises `NoPrice` for any other text."""
    if found is None or found == "":
        return None
    text = str(found).strip()
    try:
        if _ISO_TIME.fullmatch(text):
            return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text)).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise NoPrice("value.not_time", f"{name} {_excerpt(found)}")


def why_not_in_force(start: datetime | None, end: datetime | None, at: datetime) -> str:
    """Return `NOT_YET` or `NO_LONGER` for a price that is not in force at a time, "" for a valid price."""
    if start is not None and start > at:
        return NOT_YET
    return NO_LONGER if end is not None and end <= at else ""


def _excerpt(found: object) -> str:
    return repr(str(found)[:40])


def left_out(counts: Counter[str]) -> tuple[str, ...]:
    """Return a note with the number of rows left out, by kind; empty if there are none."""
    kinds = [(kind, count) for kind, count in sorted(counts.items()) if count]
    words = [f"{count:,} {kind}" for kind, count in kinds[:_MOST_NAMES]]
    if others := kinds[_MOST_NAMES:]:
        words.append(f"and {sum(count for _, count in others):,} of {len(others):,} other kinds")
    return (f"left out: {', '.join(words)}",) if words else ()


def unknown_names(kind: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return a note with the number of unknown names and the first of them; empty if there are none."""
    ordered = sorted(set(names))
    if not ordered:
        return ()
    shown = ", ".join(name[:60] for name in ordered[:_MOST_NAMES])
    more = f" and {len(ordered) - _MOST_NAMES:,} more" if len(ordered) > _MOST_NAMES else ""
    return (f"{len(ordered):,} {kind}: {shown}{more}",)
