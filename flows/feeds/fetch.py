"""Fetch live feeds: pages are staged, and become observations with the row of ``fetches`` in one transaction."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pandas as pd

from slackwater.flows.config import BoundSettings, Feed, Settings
from slackwater.flows.feeds.staging import StagedPage, discard_staged, rows_of_page, stage_page, staged_pages
from slackwater.flows.show.formats import rows_of, utc
from slackwater.warehouse.documents import read_object
from slackwater.warehouse.errors import CaughtError, FetchError, InputError, SettingsError, StoreLockedError
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.observations import Appended, Bounds, FollowedSince, append
from slackwater.warehouse.sources import LIVE_SOURCES
from slackwater.warehouse.sources.live.contract import FetchedPage, FetchRequest, Listing, Mark, PartFailed
from slackwater.warehouse.sources.live.transport import SKEW_SECONDS, Retry, Transport
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import steady_seconds

LONGEST_REASON = 2000  # Maximum number of characters of a stored reason
#: Pages that arrive within this many seconds are committed together: opening the warehouse for each
#: would take longer than reading it.
GATHER_SECONDS = 5.0
#: Maximum number of distinct rejection reasons printed, most frequent first.
MOST_REASONS = 3
USUAL_BOUNDS = BoundSettings.model_validate({})
_SEED_BITS = 2**32


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRow:
    """A row of ``fetches``: the result of a fetch, over all its attempts at the same logical time.

    ``status``: done, partial (some parts failed, or it was stopped) or failed (nothing was read).
    ``finished``: every part was tried to its end; an unfinished fetch continues where it stopped.
    """

    feed: str
    at: pd.Timestamp
    status: str
    added: int = 0
    repeated: int = 0
    rejected: int = 0
    requests: int = 0
    reason: str = ""
    finished: bool = True
    options: str = ""
    marks: Mapping[str, Mark] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Return the numbers of rows added, repeated and rejected."""
        return {"added": self.added, "repeated": self.repeated, "rejected": self.rejected}

    def plus(self, stored: Appended) -> FetchRow:
        """Return the row with the counts of stored rows added."""
        return replace(
            self,
            added=self.added + stored.added,
            repeated=self.repeated + stored.repeated,
            rejected=self.rejected + stored.rejected,
        )

    def watermark(self) -> str:
        """Return the marks of all parts as JSON."""
        parts = {part: mark.to_json() for part, mark in sorted(self.marks.items())}
        return json.dumps({"finished": self.finished, "options": self.options, "parts": parts})


def options_mark(feed: Feed) -> str:
    """Return a digest of the feed's source and options: after a change of these, the stored marks no longer apply."""
    identity = json.dumps([feed.source, feed.options], sort_keys=True, default=str)
    return hashlib.sha256(identity.encode()).hexdigest()[:16]


def marks_for(feed: Feed, last: FetchRow | None) -> dict[str, Mark]:
    """Return the marks to continue from: those of the last fetch; if its options differ, only their ``followed_since``."""
    if last is None:
        return {}
    if last.options == options_mark(feed):
        return dict(last.marks)
    return {part: Mark(followed_since=mark.followed_since) for part, mark in last.marks.items()}


def advance_mark(mark: Mark, page: FetchedPage, request: FetchRequest) -> Mark:
    """Return the mark of a part after a page; a range requested by hand moves it only if it adjoins the data read before."""
    base = replace(mark, followed_since=mark.followed_since or request.at - request.every)
    if page.memory is not None:
        base = replace(base, memory=page.memory)
    by_hand = request.since is not None
    if page.token is not None:
        listing = Listing(opened_at=request.at, token=page.token, since=page.since, end=page.end)
        return base if by_hand else replace(base, listing=listing)
    base = replace(base, until=_until(mark.until, page))
    if by_hand:
        return base
    whole = page.end is None or page.end >= request.at
    return replace(base, listing=None, done_at=request.at if whole else mark.done_at)


def _until(until: datetime | None, page: FetchedPage) -> datetime | None:
    if page.end is None or page.since is None or until is None:
        return page.end if until is None else until
    return max(until, page.end) if page.since <= until else until


def save_fetched(store: Store, row: FetchRow) -> None:
    """Write the row of a fetch; replaces the row of its earlier attempts."""
    at = row.at.to_pydatetime()
    plain: dict[str, Any] = {
        "feed": row.feed,
        "logical_at": row.at,
        "status": row.status,
        **row.counts(),
        "requests": row.requests,
        "watermark": row.watermark(),
        "reason": row.reason,
    }
    with store.transaction():
        store.execute("DELETE FROM fetches WHERE feed = ? AND logical_at = ?", [row.feed, at])
        write_rows(store, "fetches", pd.DataFrame([plain]))


def last_fetches(store: Store) -> dict[str, FetchRow]:
    """Return the newest fetch of every feed by logical time, without fetches that were stopped."""
    frame = read_rows(store, "fetches", order_by=["feed", "logical_at"])
    return {str(row["feed"]): _read_fetch(row) for row in rows_of(frame)}


def fetch_states(store: Store) -> dict[str, FetchRow]:
    """Return the newest fetch of every feed, including fetches that were stopped: their pages are staged."""
    found = last_fetches(store)
    for (name,) in store.execute("SELECT DISTINCT feed FROM staged_pages"):
        page = staged_pages(store, str(name))[-1]
        before = found.get(page.feed)
        if before is None or before.at <= page.at:
            found[page.feed] = stopped_after(page, before)
    return found


def stopped_after(page: StagedPage, before: FetchRow | None) -> FetchRow:
    """Return the state of a fetch that was stopped after a staged page, with the counts of earlier attempts (``before``)."""
    finished, options, marks = _read_watermark(page.watermark)
    start = FetchRow(feed=page.feed, at=page.at, status="partial")
    return replace(
        before if before is not None and before.at == page.at else start,
        status="partial",
        requests=page.requests,
        reason=f"stopped after page {page.number} ({page.part}); the next fetch goes on from there",
        finished=finished,
        options=options,
        marks=marks,
    )


def _read_watermark(text: str | None) -> tuple[bool, str, dict[str, Mark]]:
    kept = read_object(text) or {}
    try:
        marks = {part: Mark.from_json(mark) for part, mark in kept.get("parts", {}).items()}
    except (KeyError, ValueError, TypeError, AttributeError):  # unknown format: its parts are read again
        marks = {}
    return bool(kept.get("finished", True)), str(kept.get("options", "")), marks


def _read_fetch(row: Mapping[str, Any]) -> FetchRow:
    finished, options, marks = _read_watermark(row["watermark"])
    return FetchRow(
        feed=str(row["feed"]),
        at=pd.Timestamp(row["logical_at"]).tz_convert("UTC"),
        status=str(row["status"]),
        **{name: int(row[name]) for name in ("added", "repeated", "rejected", "requests")},
        reason=str(row["reason"]),
        finished=finished,
        options=options,
        marks=marks,
    )


def find_feed(settings: Settings, name: str) -> Feed:
    """Return the feed of that name; raises `InputError` with the known names."""
    for feed in settings.feeds:
        if feed.name == name:
            return feed
    known = ", ".join(feed.name for feed in settings.feeds)
    raise InputError(
        f"no feed {name!r} in the settings",
        expected=f"one of {known}" if known else "a [[feeds]] entry in slackwater.toml",
    )


def is_due(feed: Feed, last: FetchRow | None, at: pd.Timestamp) -> bool:
    """Return whether a feed is due at a logical time: its interval has passed, or its last fetch failed or was stopped.

    History requested by hand does not count. A time before the last fetch is never due: a live
    source cannot report its past state.
    """
    if last is None:
        return True
    if at < last.at:
        return False
    done = [mark.done_at for mark in last.marks.values() if mark.done_at is not None]
    if last.status == "failed" or not last.finished or not done:
        return True
    return at >= pd.Timestamp(max(done)) + pd.Timedelta(feed.every)


@contextmanager
def collected_due(
    store: Store,
    feeds: Sequence[Feed],
    *,
    at: pd.Timestamp,
    seed: int,
    say: Callable[[str], None],
    clock: pd.Timestamp | None = None,
    bounds: BoundSettings = USUAL_BOUNDS,
) -> Iterator[tuple[CollectedFetch, ...]]:
    """Fetch every feed that is due, and provide the fetches, to be stored inside the block; failing feeds stop nothing."""
    found: list[CollectedFetch] = []
    with ExitStack() as claims:
        for feed in feeds:
            if not is_due(feed, fetch_states(store).get(feed.name), at):
                continue
            try:
                claims.enter_context(_claim(store, feed))
            except StoreLockedError as error:
                say(f"{feed.name} is not fetched: {error}")
                continue
            # Another process may have fetched it while this process waited.
            if is_due(feed, fetch_states(store).get(feed.name), at):
                say(f"fetch {feed.name}")
                transport = transport_for(feed, at, seed=seed, budget=feed.budget_seconds)
                found.append(_collect(store, feed, at=at, transport=transport, clock=clock, bounds=bounds))
        yield tuple(found)


def store_collected(
    store: Store, collected: Sequence[CollectedFetch], *, say: Callable[[str], None]
) -> dict[str, dict[str, int]]:
    """Store fetches, all or none; return the rows added, repeated and rejected per feed."""
    counts: dict[str, dict[str, int]] = {}
    with store.transaction():
        for batch in collected:
            fetched = _store(store, batch, say)
            counts[fetched.feed] = fetched.counts()
            if fetched.reason:
                say(f"{fetched.feed} is {fetched.status}: {fetched.reason}")
    return counts


def transport_for(feed: Feed, at: pd.Timestamp, *, seed: int, **others: Any) -> Transport:
    """Return the HTTP transport of a feed; its retry delays vary by feed and time, so that feeds do not retry all at once."""
    mixed = zlib.crc32(f"{feed.name} {at.isoformat()}".encode())
    return Transport(
        seed=(seed + mixed) % _SEED_BITS,
        retry=Retry(tries=feed.tries),
        seconds=feed.timeout_seconds,
        **others,
    )


def fetch_feed(
    store: Store,
    feed: Feed,
    *,
    at: pd.Timestamp,
    transport: Transport,
    span: tuple[pd.Timestamp | None, pd.Timestamp | None] = (None, None),
    clock: pd.Timestamp | None = None,
    bounds: BoundSettings = USUAL_BOUNDS,
    say: Callable[[str], None] = lambda _: None,
) -> FetchRow:
    """Fetch a feed at a logical time and return the result; raises `InputError` for a time before its last fetch.

    ``span``: a range of history to read in addition. ``clock``: the present time (default: the logical time),
    compared with the server's clock and used to reject rows from the future, within the limits of ``bounds``.

    A fetch that was completed at the same logical time is not repeated. Failures of the source are
    not raised: ``status`` and ``reason`` of the result describe them.
    """
    with _claim(store, feed):
        collected = _collect(store, feed, at=at, transport=transport, span=span, clock=clock, bounds=bounds)
        return _store(store, collected, say)


def _claim(store: Store, feed: Feed) -> AbstractContextManager[None]:
    return store.claimed(f"feed-{feed.name}", f"fetch {feed.name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectedFetch:
    """A fetch that has ended, whose pages are staged: its row of ``fetches`` without the counts of staged rows.

    ``new``: False for a fetch that was complete before. ``bounds``: limits of usable rows.
    """

    feed: Feed
    row: FetchRow
    bounds: Bounds
    new: bool = True


def _collect(
    store: Store,
    feed: Feed,
    *,
    at: pd.Timestamp,
    transport: Transport,
    span: tuple[pd.Timestamp | None, pd.Timestamp | None] = (None, None),
    clock: pd.Timestamp | None,
    bounds: BoundSettings,
) -> CollectedFetch:
    """Read a feed to the end of a fetch and stage its pages; see `fetch_feed`."""
    source, options = LIVE_SOURCES[feed.source], options_mark(feed)
    # The default time zone applies only to documented APIs; for tables over HTTP the options must state it.
    limits = replace(bounds.at(at if clock is None else clock), time_zone=source.time_zone(feed.options))
    discard_staged(store, feed.name, keep_options=options)
    last = fetch_states(store).get(feed.name)
    if last is not None and at < last.at:
        raise InputError(
            f"feed {feed.name!r} was fetched at {last.at}, after {at}",
            expected="a later --at",
            remedy="history is read with --since and --until; earlier answers of a source cannot be requested again",
        )
    same = last if last is not None and last.at == at else None
    if same is not None and same.status == "done" and span[0] is None and same.options == options:
        return CollectedFetch(feed=feed, row=same, bounds=limits, new=False)
    request = FetchRequest(
        options=feed.options,
        at=_plain(at),
        every=feed.every,
        marks=marks_for(feed, last),
        since=None if span[0] is None else _plain(span[0]),
        until=None if span[1] is None else _plain(span[1]),
        clock=_plain(at if clock is None else clock),
    )
    start = replace(
        same or FetchRow(feed=feed.name, at=at, status="partial"),
        status="partial",
        reason="",
        finished=False,
        options=options,
        marks=request.marks,
    )
    try:
        row = _Fetch(store, feed, request, transport, start).run(clock)
    finally:
        transport.close()
    return CollectedFetch(feed=feed, row=row, bounds=limits)


def _store(store: Store, collected: CollectedFetch, say: Callable[[str], None]) -> FetchRow:
    """Turn the staged pages of a feed into observations and store the row of the fetch, in one transaction.

    Pages of an earlier fetch that was stopped are stored with a row of their own.
    """
    if not collected.new:
        return collected.row
    feed, source = collected.feed, LIVE_SOURCES[collected.feed.source]
    reasons: Counter[str] = Counter()
    rows = {collected.row.at: collected.row}
    with store.transaction():
        last = last_fetches(store).get(feed.name)
        for page in staged_pages(store, feed.name):
            if page.at != collected.row.at:
                rows[page.at] = stopped_after(page, rows.get(page.at, last))
            kept = append(
                store,
                rows_of_page(store, page),
                source=source.name,
                known_at=FollowedSince(start=page.followed_since, at=page.at),
                imported_at=page.at,
                file=f"{feed.name}:{page.part}",
                assumptions=source.assumptions(feed.options),
                bounds=collected.bounds,
            )
            reasons.update(kept.reasons)
            rows[page.at] = rows[page.at].plus(kept)
        for row in rows.values():
            save_fetched(store, row)
        discard_staged(store, feed.name)
    if reasons:
        most = [f"{count:,} {reason}" for reason, count in reasons.most_common(MOST_REASONS)]
        say(f"rows of {feed.name} rejected: {'; '.join(most)} (`slackwater rejected`)")
    return rows[collected.row.at]


def _failure_text(error: BaseException) -> str:
    """Return why a fetch ended early; raises the error again unless it is caused by the source, its answer or the settings."""
    if isinstance(error, FetchError | SettingsError):
        return str(error)
    if isinstance(error, ValueError | TypeError | LookupError | ArithmeticError):
        return f"an answer that cannot be read ({type(error).__name__}: {error})"
    raise error


def _plain(at: pd.Timestamp) -> datetime:
    return at.tz_convert("UTC").to_pydatetime(warn=False)


@dataclass(slots=True)
class _Fetch:
    """Attempt of a fetch: stages each page together with the marks that it leaves."""

    _store: Store
    _feed: Feed
    _asked: FetchRequest
    _transport: Transport
    _row: FetchRow
    _snapshot: bool = False
    _before: int = field(init=False)
    _pages: int = field(init=False)

    def __post_init__(self) -> None:
        staged = staged_pages(self._store, self._feed.name)
        self._before = self._row.requests
        self._pages = max((page.number for page in staged if page.at == self._row.at), default=0)

    def run(self, clock: pd.Timestamp | None) -> FetchRow:
        failures: list[str] = []
        notes: list[str] = []
        items = LIVE_SOURCES[self._feed.source].fetch(self._asked, self._transport)
        more, ended = True, None
        while more:
            gathered, more, ended = self._gather(items)
            for item in gathered:
                if isinstance(item, FetchedPage):
                    self._keep(item)
                    self._snapshot |= item.end is None
                    notes += [note for note in item.notes if note not in notes]
                else:
                    failures.append(f"{item.part}: {item.reason}")
        if ended is not None:
            failures.append(_failure_text(ended))
        finished = ended is None and not self._transport.out_of_time
        notes += self._late() + self._skew(clock)
        done = any(mark.done_at == self._asked.at for mark in self._row.marks.values())
        status = "done" if not failures else "partial" if self._pages or done else "failed"
        return self._end(status, "; ".join(failures + notes), finished=finished and status != "failed")

    def _gather(
        self, items: Iterator[FetchedPage | PartFailed]
    ) -> tuple[list[FetchedPage | PartFailed], bool, BaseException | None]:
        """Collect pages for `GATHER_SECONDS` without the warehouse: pages, whether more may follow, error that ended it."""
        gathered: list[FetchedPage | PartFailed] = []
        # An interruption loses none of the pages that arrived before it.
        with self._store.released(), CaughtError() as kept:
            end = steady_seconds() + GATHER_SECONDS
            for item in items:
                gathered.append(item)
                if steady_seconds() >= end:
                    return gathered, True, None
        return gathered, False, kept.error

    def _keep(self, page: FetchedPage) -> None:
        """Stage a page with the marks of the fetch after it."""
        mark = advance_mark(self._row.marks.get(page.part, Mark()), page, self._asked)
        row = replace(self._row, marks={**self._row.marks, page.part: mark}, requests=self._requests())
        staged = StagedPage(
            feed=row.feed,
            at=row.at,
            number=self._pages + 1,
            part=page.part,
            options=row.options,
            followed_since=pd.Timestamp(mark.followed_since or self._asked.at),
            requests=row.requests,
            watermark=row.watermark(),
        )
        stage_page(self._store, staged, [batch for batch in page.batches if batch.table.num_rows])
        self._row = row
        self._pages = staged.number

    def _requests(self) -> int:
        return self._before + self._transport.requests

    def _end(self, status: str, reason: str, *, finished: bool) -> FetchRow:
        reason = self._transport.secrets.scrub(reason)
        reason = "".join(character if character.isprintable() else " " for character in reason)
        if len(reason) > LONGEST_REASON:
            reason = reason[: LONGEST_REASON - 3] + "..."
        return replace(self._row, status=status, reason=reason, finished=finished, requests=self._requests())

    def _late(self) -> list[str]:
        """Return a note if a snapshot was answered much later than the logical time: its rows are dated at the answer."""
        answered = self._asked.observed_at(self._transport.server_date)
        if not self._snapshot or answered == self._asked.at:
            return []
        return [f"answered at {utc(answered)}, not at {utc(self._asked.at)}: the rows are of that time"]

    def _skew(self, clock: pd.Timestamp | None) -> list[str]:
        """Return a note if the server's clock differs from ours, or, without ``clock``, from the logical time."""
        date = self._transport.first_date
        if date is None:
            return []
        ahead = (pd.Timestamp(date) - (self._row.at if clock is None else clock)).total_seconds()
        late = self._asked.every.total_seconds() if clock is None else 0.0
        if -SKEW_SECONDS <= ahead <= SKEW_SECONDS + late:
            return []
        words = "ahead of" if ahead > 0 else "behind"
        whose = "the logical time" if clock is None else "our clock"
        believed = "" if self._asked.believes(date) else ", which is believed instead"
        return [f"the server's clock is {abs(ahead):,.0f} s {words} {whose}{believed}"]
