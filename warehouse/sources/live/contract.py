"""What a live source is: an API asked at a logical time, read page by page, and where the reading stands.

Like a `warehouse.sources.contract.Source` it only translates: rows go into batches as found, the store casts, judges and
counts them.
Instead of files it has `LiveSource.fetch`, which yields a `FetchedPage` per answer. Whoever runs it commits every page together
with the `Mark` of its part (a region, an instance type), so that a fetch that is killed after any page goes on behind it.

Two sorts of source (M1.2):

- a *history* answers what was true between two times (``aws-spot``): it is read from the mark to the logical time;
- a *snapshot* answers what is true now: its rows are observed at the logical time, or, if the server's ``Date`` says that the
  answer was given more than one interval later, at that later time. A late answer never passes for an earlier one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Generic

from warehouse.errors import FetchError
from warehouse.sources.contract import Batch, OptionsT, help_of, read_options

if TYPE_CHECKING:
    from warehouse.sources.live.transport import Transport

#: A server's clock this far from ours is wrong.
BELIEVED = timedelta(days=1)
#: The part of a source that has no parts.
WHOLE = "all"
#: A price that is above this is none; so is one of more characters.
_HIGHEST_USD = Decimal(1_000_000)
_LONGEST_NUMBER = 40
#: Names that a note shows.
_MOST_NAMES = 5
_ISO_TIME = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?(Z|[+-]\d{2}:?\d{2})", re.IGNORECASE
)
#: Why a row of a price list is left out, by the time at which it is in force.
NOT_YET, NO_LONGER = "not yet in force", "no longer in force"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A listing that is being read: the range asked for (None for a snapshot), the page to go on with, the time it was opened."""

    opened_at: datetime
    token: str
    since: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Where the reading of one part stands.

    ``followed_since``: rows observed from then on are known when they are fetched, earlier ones are history. ``until``: a
    history is complete up to then. ``done_at``: logical time of the last complete reading. ``listing``: one that was cut.
    ``memory``: what the source wants to know next time (for example the series it has seen).
    """

    followed_since: datetime | None = None
    until: datetime | None = None
    done_at: datetime | None = None
    listing: Listing | None = None
    memory: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values: times as ISO 8601, absent ones left out."""
        plain: dict[str, Any] = {name: _text(getattr(self, name)) for name in _TIMES}
        if self.listing is not None:
            own = self.listing
            plain["listing"] = {
                "opened_at": _text(own.opened_at), "token": own.token,
                "since": _text(own.since), "end": _text(own.end),
            }  # fmt: skip
        if self.memory:
            plain["memory"] = list(self.memory)
        return {name: value for name, value in plain.items() if value is not None}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Mark:
        """The mark that `to_json` wrote."""
        own = plain.get("listing")
        return cls(
            **{name: _time(plain.get(name)) for name in _TIMES},
            listing=None
            if own is None
            else Listing(
                opened_at=datetime.fromisoformat(own["opened_at"]),
                token=str(own["token"]),
                since=_time(own.get("since")),
                end=_time(own.get("end")),
            ),
            memory=tuple(plain.get("memory", ())),
        )


_TIMES = ("followed_since", "until", "done_at")


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """What a fetch is asked for: the logical time, how often the feed is fetched, where each part stands.

    ``since`` and ``until`` bound a history that is read by hand; a snapshot has none and ignores them. ``clock`` is the present
    time, by default the logical one.
    """

    options: Mapping[str, Any]
    at: datetime
    every: timedelta
    marks: Mapping[str, Mark] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    clock: datetime | None = None

    def mark(self, part: str) -> Mark:
        """Where a part stands; an empty mark for one never read."""
        return self.marks.get(part, Mark())

    def is_done(self, part: str) -> bool:
        """Whether the part was read to its end at this logical time already."""
        return self.since is None and self.mark(part).done_at == self.at

    def token(self, part: str) -> str | None:
        """The page a snapshot goes on with: only where it was cut at this same logical time."""
        own = self.mark(part).listing
        return own.token if own is not None and own.opened_at == self.at else None

    def observed_at(self, answered: datetime | None) -> datetime:
        """When a snapshot that was answered at ``answered`` (the server's ``Date``) was true.

        A server whose clock is more than `BELIEVED` from ours is not believed: then ours says when it was answered.
        """
        if answered is not None and not self.believes(answered):
            answered = self.clock
        if answered is not None and answered > self.at + self.every:
            return answered
        return self.at

    def believes(self, answered: datetime) -> bool:
        """Whether a server's time is near enough to ours."""
        return abs(answered - (self.clock or self.at)) <= BELIEVED


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedPage:
    """One answer of one part, to be committed as a whole.

    ``token`` goes on behind it, None at the part's end. ``since`` and ``end``: the range a history asked for. ``memory``
    replaces that of the mark, unless None. ``notes`` are sentences for the record of the fetch.
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
    """A part that could not be read, and why; the others go on."""

    part: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """The least that an API is asked and says: options beside its address, and one answer of the documented form.

    ``answer`` is JSON, or XML where it begins with ``<``. ``credentials`` are the environment variables that the source reads
    them from. Shown in the documentation, and held to the contract by the tests.
    """

    options: Mapping[str, Any]
    answer: str = ""
    credentials: tuple[str, ...] = ()


class LiveSource(ABC, Generic[OptionsT]):
    """A reader of one API; ``form`` is the model of its options."""

    name: str
    form: type[OptionsT]
    example: Example

    @property
    def options(self) -> Mapping[str, str]:
        """Option name -> one sentence of help."""
        return help_of(self.form)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise `SettingsError` if the options cannot be used; asks nobody and needs no credentials."""
        read_options(self.name, self.form, options)

    def fetch(self, asked: FetchRequest, transport: Transport) -> Iterator[FetchedPage | PartFailed]:
        """Yield the pages that were asked for, part by part.

        Raises `SettingsError` for options that cannot be used, `FetchError` if nothing can be read at all (no credentials, no
        network, a probe that failed).
        """
        yield from self.pages(read_options(self.name, self.form, asked.options), asked, transport)

    def time_zone(self, options: Mapping[str, Any]) -> str:
        """The zone of times that name none: "UTC" where the API documents it, "" where nothing does."""
        return self.zone_of(read_options(self.name, self.form, options))

    def zone_of(self, options: OptionsT) -> str:
        """`time_zone` of a source whose options say it."""
        return "UTC"

    def assumptions(self, options: Mapping[str, Any]) -> tuple[str, ...]:
        """In words, what is assumed of the answers."""
        return self.assumed(read_options(self.name, self.form, options))

    @abstractmethod
    def pages(
        self, options: OptionsT, asked: FetchRequest, transport: Transport
    ) -> Iterator[FetchedPage | PartFailed]:
        """The pages that were asked for; a part that is done at this logical time is not asked again."""

    def assumed(self, options: OptionsT) -> tuple[str, ...]:
        """In words, what is assumed of the answers; nothing where every record says what it is."""
        return ()


def next_page(token: str | None, seen: set[str | None], who: str, *, most: int | None = None) -> str | None:
    """The token of the page to go on with, noted in ``seen``; raises `FetchError` where pages would never end."""
    if token is not None and (token in seen or (most is not None and len(seen) >= most)):
        raise FetchError(
            f"{who} gave the same next page twice, or pages without end", expected="a new one a page"
        )
    seen.add(token)
    return token


# ---
# What a row of a price list must be before it is a price of the thing asked for (M1.1): in force, positive, the only one.


class NoPrice(ValueError):
    """A row that cannot be used, and why."""


def price_of(found: object, name: str) -> Decimal:
    """Return a price in USD; raises `NoPrice` for no number, and for 0, which price lists write where there is no price yet."""
    try:
        usd = Decimal("" if found is None or isinstance(found, bool) else str(found)[: _LONGEST_NUMBER + 1])
    except InvalidOperation:
        raise NoPrice(f"{name} {_shown(found)} is not a number") from None
    if usd == 0:
        raise NoPrice(f"{name} 0 is a placeholder, not a price")
    if not usd.is_finite() or not 0 < usd <= _HIGHEST_USD or len(str(found)) > _LONGEST_NUMBER:
        raise NoPrice(f"{name} {_shown(found)} is not a price")
    return usd


def time_of(found: object, name: str) -> datetime | None:
    """Return an ISO 8601 time with an offset, None where nothing stands; raises `NoPrice` for any other text."""
    if found is None or found == "":
        return None
    text = str(found).strip()
    try:
        if _ISO_TIME.fullmatch(text):
            return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text)).astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise NoPrice(f"{name} {_shown(found)} is not a time in ISO 8601 with an offset")


def why_not_in_force(start: datetime | None, end: datetime | None, at: datetime) -> str:
    """Return `NOT_YET` or `NO_LONGER` for a price that is not in force at a time, "" for one that is."""
    if start is not None and start > at:
        return NOT_YET
    return NO_LONGER if end is not None and end <= at else ""


def _shown(found: object) -> str:
    return repr(str(found)[:40])


def left_out(counts: Counter[str]) -> tuple[str, ...]:
    """Return a note that counts the rows that are no price of what is asked for, by kind; none without any."""
    words = ", ".join(f"{count:,} {kind}" for kind, count in sorted(counts.items()) if count)
    return (f"left out: {words}",) if words else ()


def unknown_names(kind: str, names: Iterable[str]) -> tuple[str, ...]:
    """Return a note with the number of names that a source does not know, and the first of them; none without any."""
    ordered = sorted(set(names))
    if not ordered:
        return ()
    shown = ", ".join(name[:60] for name in ordered[:_MOST_NAMES])
    more = f" and {len(ordered) - _MOST_NAMES:,} more" if len(ordered) > _MOST_NAMES else ""
    return (f"{len(ordered):,} {kind}: {shown}{more}",)
