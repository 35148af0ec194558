"""Hostile feeds: a bad row costs only that row, a bad feed only itself, and a slow network blocks no writer."""

import json
from copy import deepcopy

import pandas as pd
import pytest
from loopback import AT, Reply, serve
from storeprocess import run_python

from slackwater.flows.config import Feed
from slackwater.flows.feeds import fetch as feeds
from slackwater.flows.feeds.fetch import collected_due, fetch_feed, last_fetches, store_collected
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.sources import LIVE_SOURCES
from slackwater.warehouse.sources.live.http_rows import HttpRows
from slackwater.warehouse.sources.live.transport import Retry, Secrets, Transport
from slackwater.warehouse.store.connection import open_reader, open_store

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


#: Sources with the longest answers; those of the others have leaves of the same kinds.
LONG = ("gcp-catalogue", "azure-retail")


@pytest.mark.parametrize("values", [1, pytest.param(len(ABSURD), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG else ())
        for name, one in LIVE_SOURCES.items()
        if one.example.answer.startswith(("{", "["))
    ],
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
        with collected_due(store, feeds, at=AT, seed=1, say=lambda _: None) as found:
            counts = store_collected(store, found, say=lambda _: None)
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


def test_another_process_writes_while_the_network_is_waited_for_and_publishes_nothing_of_the_fetch(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(feeds, "GATHER_SECONDS", 0.0)  # every page is staged before the next is asked for
    db, told, seen_by_readers = tmp_path / "w.duckdb", [], []

    def answer(seen):
        page = int(seen.query["page"])
        other = run_python(WRITER, db, page)
        _, said = other.communicate()
        told.append((other.returncode, said))
        with open_reader(db) as reader:
            seen_by_readers.append((len(read_rows(reader, "price")), len(read_rows(reader, "fetches"))))
        return Reply([row(zone=f"z{page}")] if page < 3 else [])

    with serve(answer) as server, open_store(db) as store:
        feed = feed_of(server.url, paging="page").model_copy(update={"timeout_seconds": 60.0})
        transport = Transport(seed=1, retry=Retry(tries=1), seconds=60.0, sleep=lambda _: None)
        fetched = fetch_feed(store, feed, at=AT, transport=transport)
        assert [code for code, _ in told] == [0] * 3, told
        assert (fetched.status, fetched.added) == ("done", 2)
        assert sorted(read_rows(store, "assumptions")["text"]) == ["1", "2", "3"]
    assert seen_by_readers == [(0, 0)] * 3
    with open_store(db) as store:
        assert len(read_rows(store, "price")) == 2


FETCH = """
import sys
from pathlib import Path
import pandas as pd
from slackwater.flows.config import Feed
from slackwater.flows.feeds.fetch import fetch_feed
from slackwater.warehouse.sources.live.transport import Transport
from slackwater.warehouse.store.connection import open_store
feed = Feed.model_validate_json(sys.argv[2])
with open_store(Path(sys.argv[1])) as store:
    fetched = fetch_feed(store, feed, at=pd.Timestamp(sys.argv[3]), transport=Transport(seed=1, seconds=60.0))
print(fetched.status, fetched.added, fetched.repeated, fetched.requests)
"""


def test_two_fetches_of_one_feed_follow_each_other(tmp_path):
    db, others = tmp_path / "w.duckdb", []
    feed = None

    def answer(seen):
        page = int(seen.query["page"])
        if not others:  # a second fetch begins in the middle of the first
            others.append(run_python(FETCH, db, feed.model_dump_json(), AT.isoformat()))
            assert "waiting for PID" in others[0].stderr.readline()
        return Reply([row(zone=f"z{page}")] if page < 4 else [])

    with serve(answer) as server, open_store(db) as store:
        feed = feed_of(server.url, paging="page").model_copy(update={"timeout_seconds": 60.0})
        transport = Transport(seed=1, retry=Retry(tries=1), seconds=60.0, sleep=lambda _: None)
        fetched = fetch_feed(store, feed, at=AT, transport=transport)
        assert (fetched.added, fetched.requests) == (3, 4)
        store.close()
        (other,) = others
        assert other.stdout.readline().split() == ["done", "3", "0", "4"], other.stderr.read()
        other.wait()
        assert len(server.seen) == 4  # the second fetch finds the first complete
    with open_reader(db) as reader:
        assert (len(read_rows(reader, "price")), len(read_rows(reader, "fetches"))) == (3, 1)


def test_a_turn_publishes_no_feed_before_all_are_read(tmp_path):
    db, seen_by_readers = tmp_path / "w.duckdb", []

    def answer(seen):
        with open_store(db):
            pass
        with open_reader(db) as reader:
            seen_by_readers.append(len(read_rows(reader, "fetches")))
        return Reply([row()])

    with serve(answer) as server, open_store(db) as store:
        two = [feed_of(server.url, source=name).model_copy(update={"name": name}) for name in ("a", "b")]
        with collected_due(store, two, at=AT, seed=1, say=lambda _: None) as found:
            assert read_rows(store, "price").empty
            with store.transaction():
                counts = store_collected(store, found, say=lambda _: None)
    assert seen_by_readers == [0, 0]
    assert [one["added"] for one in counts.values()] == [1, 1]
