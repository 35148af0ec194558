"""Where a feed stands, as the table ``fetches`` keeps it, and how a page moves it on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pandas as pd

from flows.config import Feed
from flows.show.table import rows_of
from warehouse.issued.records import read_rows, write_rows
from warehouse.sources.live.contract import Asked, Listing, Mark, Page
from warehouse.store.connection import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """One row of ``fetches``: what a fetch brought, in all its attempts at one logical time.

    ``status``: done, partial (some parts failed, or it was stopped) or failed (nothing was read). ``finished``: every part was
    tried to its end; a fetch that is not goes on where it stopped.
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
        """Rows added, repeated and rejected."""
        return {"added": self.added, "repeated": self.repeated, "rejected": self.rejected}

    def watermark(self) -> str:
        """The marks of all parts as JSON."""
        parts = {part: mark.to_json() for part, mark in sorted(self.marks.items())}
        return json.dumps({"finished": self.finished, "options": self.options, "parts": parts})


def options_mark(feed: Feed) -> str:
    """Digest of what a feed asks for: a feed that asks for something else has read nothing of it yet."""
    asked = json.dumps([feed.source, feed.options], sort_keys=True, default=str)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def marks_for(feed: Feed, last: Fetched | None) -> dict[str, Mark]:
    """The marks to go on from: those of the last fetch; of one with other options only since when each part is followed."""
    if last is None:
        return {}
    if last.options == options_mark(feed):
        return dict(last.marks)
    return {part: Mark(followed_since=mark.followed_since) for part, mark in last.marks.items()}


def moved(mark: Mark, page: Page, asked: Asked) -> Mark:
    """The mark of a part behind a page.

    A range read by hand moves the mark only if it joins what was read before, and leaves a listing that was cut alone.
    """
    base = replace(mark, followed_since=mark.followed_since or asked.at - asked.every)
    if page.memory is not None:
        base = replace(base, memory=page.memory)
    by_hand = asked.since is not None
    if page.token is not None:
        listing = Listing(opened_at=asked.at, token=page.token, since=page.since, end=page.end)
        return base if by_hand else replace(base, listing=listing)
    base = replace(base, until=_until(mark.until, page))
    if by_hand:
        return base
    whole = page.end is None or page.end >= asked.at
    return replace(base, listing=None, done_at=asked.at if whole else mark.done_at)


def _until(until: datetime | None, page: Page) -> datetime | None:
    if page.end is None or page.since is None or until is None:
        return page.end if until is None else until
    return max(until, page.end) if page.since <= until else until


def save_fetched(store: Store, row: Fetched) -> None:
    """Write the row of a fetch in the place of what its earlier attempts left."""
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


def last_fetches(store: Store) -> dict[str, Fetched]:
    """The newest fetch of every feed by logical time."""
    frame = read_rows(store, "fetches", order_by=["feed", "logical_at"])
    return {str(row["feed"]): _fetched(row) for row in rows_of(frame)}


def _fetched(row: Mapping[str, Any]) -> Fetched:
    kept = json.loads(row["watermark"])
    return Fetched(
        feed=str(row["feed"]),
        at=pd.Timestamp(row["logical_at"]).tz_convert("UTC"),
        status=str(row["status"]),
        added=int(row["added"]),
        repeated=int(row["repeated"]),
        rejected=int(row["rejected"]),
        requests=int(row["requests"]),
        reason=str(row["reason"]),
        finished=bool(kept.get("finished", True)),
        options=str(kept.get("options", "")),
        marks={part: Mark.from_json(mark) for part, mark in kept.get("parts", {}).items()},
    )
