"""Fetch from a live source without a warehouse: pages in, rows out."""

import datetime as dt

from loopback import AT

from slackwater.warehouse.sources import LIVE_SOURCES
from slackwater.warehouse.sources.live.contract import FetchedPage, FetchRequest, Mark, PartFailed
from slackwater.warehouse.sources.live.transport import Retry, Transport

EVERY = dt.timedelta(hours=1)


def asked(options, *, at=AT, marks=None, **others) -> FetchRequest:
    return FetchRequest(options=options, at=at.to_pydatetime(), every=EVERY, marks=marks or {}, **others)


def items(source, options, *, transport=None, tries=2, **others) -> list[FetchedPage | PartFailed]:
    transport = transport or Transport(seed=1, retry=Retry(tries=tries), seconds=5.0, sleep=lambda _: None)
    try:
        return list(LIVE_SOURCES[source].fetch(asked(options, **others), transport))
    finally:
        transport.close()


def rows_of(found, kind: str) -> list[dict]:
    return [
        row
        for item in found
        if isinstance(item, FetchedPage)
        for batch in item.batches
        if batch.kind == kind
        for row in batch.table.to_pylist()
    ]


def marked(page: FetchedPage) -> dict[str, Mark]:
    """Return the mark of a snapshot's part that was cut after a page, at the same logical time."""
    from slackwater.warehouse.sources.live.contract import Listing

    listing = Listing(opened_at=AT.to_pydatetime(), token=page.token)
    return {page.part: Mark(listing=listing, memory=page.memory or ())}
