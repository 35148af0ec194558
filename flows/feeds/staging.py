"""Pages of a fetch that has not ended, each with the marks from which a stopped fetch continues (decision 59)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

import pandas as pd
import pyarrow as pa

from slackwater.warehouse.sources.contract import Batch, Kind
from slackwater.warehouse.store.connection import Store

_STATE = "logical_at, page, part, options, followed_since, requests, watermark"


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPage:
    """A staged page without its rows: its fetch, its part, and the state of the fetch after it.

    ``number`` counts the pages of the fetch from 1. ``watermark`` has the marks of all parts
    (`slackwater.flows.feeds.fetch.FetchRow.watermark`); rows observed before ``followed_since`` are history.
    """

    feed: str
    at: pd.Timestamp
    number: int
    part: str
    options: str
    followed_since: pd.Timestamp
    requests: int
    watermark: str


def stage_page(store: Store, page: StagedPage, batches: Sequence[Batch]) -> None:
    """Store a page and its rows."""
    at, since = page.at.to_pydatetime(warn=False), page.followed_since.to_pydatetime(warn=False)
    kinds, tables = [batch.kind for batch in batches], [_encode(batch.table) for batch in batches]
    store.execute(
        f"INSERT INTO staged_pages (feed, {_STATE}, kinds, batches) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [
            page.feed, at, page.number, page.part, page.options, since, page.requests, page.watermark,
            kinds, tables,
        ],
    )  # fmt: skip


def staged_pages(store: Store, feed: str) -> list[StagedPage]:
    """Return the staged pages of a feed in the order in which they arrived, without their rows."""
    rows = store.execute(
        f"SELECT {_STATE} FROM staged_pages WHERE feed = ? ORDER BY logical_at, page", [feed]
    )
    return [
        StagedPage(
            feed=feed,
            at=_utc(at),
            number=int(number),
            part=str(part),
            options=str(options),
            followed_since=_utc(since),
            requests=int(requests),
            watermark=str(watermark),
        )
        for at, number, part, options, since, requests, watermark in rows
    ]


def rows_of_page(store: Store, page: StagedPage) -> list[Batch]:
    """Return the rows of a staged page, as the source yielded them."""
    ((kinds, tables),) = store.execute(
        "SELECT kinds, batches FROM staged_pages WHERE feed = ? AND logical_at = ? AND page = ?",
        [page.feed, page.at.to_pydatetime(warn=False), page.number],
    )
    return [
        Batch(kind=cast("Kind", kind), table=pa.ipc.open_stream(table).read_all())
        for kind, table in zip(kinds, tables, strict=True)
    ]


def discard_staged(store: Store, feed: str, *, keep_options: str = "") -> None:
    """Delete the staged pages of a feed, except those fetched with the options of the digest ``keep_options``."""
    store.execute("DELETE FROM staged_pages WHERE feed = ? AND options <> ?", [feed, keep_options])


def _encode(table: pa.Table) -> bytes:
    target = io.BytesIO()
    with pa.ipc.new_stream(target, table.schema) as stream:
        stream.write_table(table)
    return target.getvalue()


def _utc(at: datetime) -> pd.Timestamp:
    return pd.Timestamp(at).tz_convert("UTC")
