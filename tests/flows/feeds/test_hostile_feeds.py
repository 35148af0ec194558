"""Hostile feeds: a bad row costs only that row, a bad feed only itself, and a slow network blocks no writer."""

import json
from copy import deepcopy

import pandas as pd
import pytest
from loopback import AT, Reply, serve
from storeprocess import run_python

from slackwater.flows.config import Feed
from slackwater.flows.feeds.fetch import fetch_due, fetch_feed, last_fetches
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.sources import LIVE_SOURCES
from slackwater.warehouse.sources.live.http_rows import HttpRows
from slackwater.warehouse.sources.live.transport import Retry, Secrets, Transport
from slackwater.warehouse.store.connection import open_store

HOUR = pd.Timedelta(hours=1)
COLUMNS = {
    "provider": "=own",
    "region": "=r1",
    "zone": "zone",
    "instance_type": "type",
    "price_usd": "usd",
    "observed_at": "at",
}
HALF = "\ud800"
#: Values sent by a server instead of a number, a name or a time.
ABSURD = [
    HALF, "9" * 5000, "1e999", "NaN", "-0x10", None, True, [], {"a": [1]}, "", "a\x00b", "\u202egnp", "x" * 100_000,
    "294247-01-10T04:00:54Z", "0000-00-00",
]  # fmt: skip


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for example in (source.example for source in LIVE_SOURCES.values()):
        for variable in example.credentials:
            monkeypatch.setenv(variable, f"secret-of-{variable.lower()}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def feed_of(url, name="own", **options):
    return Feed(name=name, source="http", options={"url": url, "columns": COLUMNS} | options)


def fetch(store, feed, at=AT):
    transport = Transport(
        seed=1, retry=Retry(tries=1), seconds=5.0, sleep=lambda _: None, secrets=Secrets({})
    )
    return fetch_feed(store, feed, at=at, transport=transport)


def row(**others):
    return {"zone": "z1", "type": "h100", "usd": 1.5, "at": (AT - HOUR).isoformat()} | others


def test_a_value_that_cannot_be_costs_its_row_only():
    """Absurd values that are valid names (`NaN`, `True`) or prices are accepted."""
    usable = {"zone": ("1e999", "NaN", "-0x10", True, *ABSURD[-2:]), "usd": (), "at": ()}
    rows = [row(**{name: value}) for name in usable for value in ABSURD if value not in usable[name]]
    with (
        serve(lambda _: Reply(json.dumps([row(), *rows, row(zone="z2")]))) as server,
        open_store(":memory:") as store,
    ):
        fetched = fetch(store, feed_of(server.url))
        kept = read_rows(store, "rejected")
    found = sorted(set(range(2, len(rows) + 2)) - set(kept["line"]))
    assert not found, [rows[line - 2] for line in found]
    assert (fetched.status, fetched.added, fetched.rejected) == ("done", 2, len(rows)), fetched.reason


@pytest.mark.parametrize("values", [1, pytest.param(len(ABSURD), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [name for name, one in LIVE_SOURCES.items() if one.example.answer.startswith(("{", "["))]
)
def test_no_answer_of_a_source_stops_the_turn(name, values):
    """Replace each leaf of the example response by ``values`` absurd values in turn; repeated leaves only if ``values`` > 1."""
    source, example = LIVE_SOURCES[name], LIVE_SOURCES[name].example
    whole = json.loads(example.answer)
    with open_store(":memory:") as store, serve(lambda _: Reply("{}")) as server:
        feed = Feed(name="f", source=source.name, options={**example.options, "url": server.url})
        at = AT
        for number, path in enumerate(leaves(whole) if values > 1 else unlike(whole)):
            for more in range(values):
                value = ABSURD[(number + more) % len(ABSURD)]
                text = json.dumps(changed(whole, path, value))
                server.answer = lambda _, text=text: Reply(text)
                at += 24 * HOUR
                fetched = fetch(store, feed, at)
                assert fetched.status in ("done", "failed", "partial")
        server.answer = lambda _: Reply(example.answer)
        assert fetch(store, feed, at + 24 * HOUR).status == "done"


def leaves(value, path=()):
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if path:
        yield path
    for key, one in inner:
        yield from leaves(one, (*path, key))


def unlike(whole):
    """Yield the paths of all leaves, skipping repeated values at the same place of other list items."""
    seen = set()
    for path in leaves(whole):
        value = whole
        for key in path:
            value = value[key]
        same = str([key for key in path if isinstance(key, str)]), json.dumps(value)
        if same not in seen:
            seen.add(same)
            yield path


def changed(whole, path, value):
    whole = deepcopy(whole)
    place = whole
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return whole


def test_a_feed_that_its_source_cannot_read_costs_itself_only(monkeypatch):
    def broken(*_):
        raise KeyError("rows")
        yield

    with serve(lambda _: Reply([row()])) as server, open_store(":memory:") as store:
        whole = HttpRows.pages
        monkeypatch.setattr(
            HttpRows,
            "pages",
            lambda self, options, asked, transport: (
                broken() if options.source == "bad" else whole(self, options, asked, transport)
            ),
        )
        feeds = [feed_of(server.url, "bad", source="bad"), feed_of(server.url, "good")]
        counts = fetch_due(store, feeds, at=AT, seed=1, say=lambda _: None)
        assert counts["good"]["added"] == 1
        last = last_fetches(store)
        assert (last["bad"].status, last["good"].status) == ("failed", "done")
        assert "cannot be read (KeyError" in last["bad"].reason


WRITER = """
import sys
from pathlib import Path
from slackwater.warehouse.store.connection import open_store
with open_store(Path(sys.argv[1]), wait=0) as store:
    store.execute("INSERT INTO assumptions VALUES ('m', 's', ?)", [sys.argv[2]])
"""


def test_another_process_writes_while_the_network_is_waited_for(tmp_path):
    db, told = tmp_path / "w.duckdb", []

    def answer(seen):
        page = int(seen.query["page"])
        other = run_python(WRITER, db, page)
        _, said = other.communicate()
        told.append((other.returncode, said))
        return Reply([row(zone=f"z{page}")] if page < 4 else [])

    with serve(answer) as server, open_store(db) as store:
        feed = feed_of(server.url, paging="page").model_copy(update={"timeout_seconds": 60.0})
        transport = Transport(seed=1, retry=Retry(tries=1), seconds=60.0, sleep=lambda _: None)
        fetched = fetch_feed(store, feed, at=AT, transport=transport)
        assert [code for code, _ in told] == [0] * 4, told
        assert (fetched.status, fetched.added) == ("done", 3)
        assert sorted(read_rows(store, "assumptions")["text"]) == ["1", "2", "3", "4"]
    with open_store(db) as store:
        assert len(read_rows(store, "price")) == 3
