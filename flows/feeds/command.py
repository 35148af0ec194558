"""The commands ``feeds`` and ``feeds fetch``. Heavy modules are imported only when a command runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import Answer, Query, QueryAt, option, parsed_time, say
from slackwater.flows.show.blocks import Column, Table

if TYPE_CHECKING:
    from slackwater.flows.config import Feed, Settings
    from slackwater.flows.feeds.fetch import FetchRow

COLUMNS: dict[str, Column | str] = {
    "feed": "feed", "source": "source", "every_minutes": Column(heading="every", unit="min"),
    "last": Column(heading="last fetch", unit="UTC"), "status": "status", "added": "added", "repeated": "repeated",
    "rejected": "rejected", "requests": "requests", "reason": "why",
}  # fmt: skip


def feeds(*, session: Query = Query()) -> Answer:
    """List the live feeds of the settings with their last fetch."""
    from slackwater.flows.feeds.fetch import last_fetches

    last: dict[str, FetchRow] = {}
    if session.db.exists():
        with session.reading() as store:
            last = last_fetches(store)
    rows = [_row(name, feed, last.get(name)) for name, feed in _all_feeds(session.config, last)]
    notes = (
        []
        if rows
        else ["[[feeds]] in slackwater.toml names a live source; docs/live-sources.md has an example of each"]
    )
    return Answer(
        title="Live feeds", value={"feeds": rows}, blocks=[Table("Live feeds", rows, COLUMNS)], notes=notes
    )


def _all_feeds(settings: Settings, last: dict[str, FetchRow]) -> list[tuple[str, Feed | None]]:
    """Return the feeds of the settings, then those in the warehouse that the settings no longer contain."""
    feeds: list[tuple[str, Feed | None]] = [(feed.name, feed) for feed in settings.feeds]
    named = {name for name, _ in feeds}
    return feeds + [(name, None) for name in sorted(last) if name not in named]


def _row(name: str, feed: Feed | None, last: FetchRow | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "feed": name,
        "source": None if feed is None else feed.source,
        "every_minutes": None if feed is None else feed.every_minutes,
        "configured": feed is not None,
    }
    if last is None:
        return row | {"last": None, "status": "never fetched", "reason": ""}
    return row | _fetched_row(last)


def _fetched_row(fetched: FetchRow) -> dict[str, Any]:
    return {
        "last": fetched.at,
        "status": fetched.status,
        **fetched.counts(),
        "requests": fetched.requests,
        "reason": fetched.reason,
        "parts": {
            part: {"complete_until": mark.until or mark.done_at, "cut": mark.listing is not None}
            for part, mark in sorted(fetched.marks.items())
        },
    }


def fetch(
    name: Annotated[str, option("A feed of the settings.", metavar="NAME")],
    /,
    *,
    since: Annotated[
        str | None, option("Read history from then on, where the source has any.", metavar="TIME")
    ] = None,
    until: Annotated[str | None, option("End of that history (default: --at).", metavar="TIME")] = None,
    session: QueryAt = QueryAt(),
) -> Answer:
    """Fetch a feed now, or a range of its history; rows already stored are not added again."""
    from slackwater.flows.clock import now
    from slackwater.flows.feeds.fetch import fetch_feed, find_feed, transport_for
    from slackwater.warehouse.errors import FetchError, SettingsError

    config = session.config
    feed = find_feed(config, name)
    if until is not None and since is None:
        raise SettingsError("--until without --since", expected="both, or --since alone")
    clock = now()
    at = session.time if session.time is not None else clock
    if at > clock:
        raise SettingsError(f"--at {at} lies in the future", expected=f"at most {clock}")
    span = (parsed_time(since, "--since"), parsed_time(until, "--until"))
    with session.writing() as store:
        transport = transport_for(feed, at, seed=config.seed)
        fetched = fetch_feed(
            store, feed, at=at, transport=transport, span=span, clock=clock, bounds=config.bounds, say=say
        )
    if fetched.status == "failed":
        raise FetchError(f"feed {name!r}: {fetched.reason}", remedy="`slackwater feeds` shows the last fetch")
    value = {"feed": name, "source": feed.source, **_fetched_row(fetched)}
    return Answer(title=f"Fetched {name}", value=value, blocks=[Table("Fetched", [value], COLUMNS)])
