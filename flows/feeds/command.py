"""What ``feeds`` and ``feeds fetch`` do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.clock import now, parse_time
from flows.command.answer import print_json, print_table
from flows.config import Feed, Settings, read_settings
from flows.feeds.fetch import fetch_feed, find_feed, transport_for
from flows.feeds.state import Fetched, last_fetches
from warehouse.errors import FetchError, SettingsError
from warehouse.reader import open_reader
from warehouse.store.connection import open_store

COLUMNS = {
    "feed": "feed", "source": "source", "every_minutes": "every (min)", "last": "last fetch (UTC)", "status": "status",
    "added": "added", "repeated": "repeated", "rejected": "rejected", "requests": "requests", "reason": "why",
}  # fmt: skip


def feeds_command(*, db: Path, settings: Path | None, as_json: bool) -> None:
    """``slackwater feeds``: the feeds of the settings, and those of the warehouse that are no longer in them."""
    chosen = read_settings(settings)
    last: dict[str, Fetched] = {}
    if db.exists():
        with open_reader(db) as store:
            last = last_fetches(store)
    rows = [_row(name, feed, last.get(name)) for name, feed in _named(chosen, last)]
    if as_json:
        print_json({"feeds": rows})
    else:
        print_table("Live feeds", rows, COLUMNS)


def _named(settings: Settings, last: dict[str, Fetched]) -> list[tuple[str, Feed | None]]:
    feeds: list[tuple[str, Feed | None]] = [(feed.name, feed) for feed in settings.feeds]
    named = {name for name, _ in feeds}
    return feeds + [(name, None) for name in sorted(last) if name not in named]


def _row(name: str, feed: Feed | None, last: Fetched | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "feed": name,
        "source": None if feed is None else feed.source,
        "every_minutes": None if feed is None else feed.every_minutes,
        "configured": feed is not None,
    }
    if last is None:
        return row | {"last": None, "status": "never fetched", "reason": ""}
    return row | _answer(last)


def _answer(fetched: Fetched) -> dict[str, Any]:
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


def fetch_command(
    name: str,
    *,
    since: str | None,
    until: str | None,
    db: Path,
    at: str | None,
    settings: Path | None,
    as_json: bool,
) -> None:
    """``slackwater feeds fetch``: raises `FetchError` if nothing could be read; what was read of a part is kept."""
    chosen = read_settings(settings)
    feed = find_feed(chosen, name)
    if until is not None and since is None:
        raise SettingsError("--until without --since", expected="both, or --since alone")
    clock = now()
    when = parse_time(at, "--at") if at else clock
    if when > clock:
        raise SettingsError(f"--at {when} lies in the future", expected=f"at most {clock}")
    span = (parse_time(since, "--since") if since else None, parse_time(until, "--until") if until else None)
    with open_store(db) as store:
        transport = transport_for(feed, when, seed=chosen.seed)
        fetched = fetch_feed(store, feed, at=when, transport=transport, span=span, clock=clock)
    if fetched.status == "failed":
        raise FetchError(f"feed {name!r}: {fetched.reason}", remedy="`slackwater feeds` shows the last fetch")
    answer = {"feed": name, "source": feed.source, **_answer(fetched)}
    if as_json:
        print_json(answer)
    else:
        print_table("Fetched", [answer], COLUMNS)
