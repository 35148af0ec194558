"""The total time of a live request is bounded, wherever a server drips."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from dripping import WAYS, dripping
from live_fetching import items
from loopback import Reply, serve

from slackwater.warehouse.errors import FetchError
from slackwater.warehouse.sources.live.contract import PartFailed
from slackwater.warehouse.sources.live.transport import Retry, Secrets, Transport

#: The time limit of a request, and the extra time allowed on a busy machine; a response never ends by itself.
SECONDS, PATIENCE = 0.3, 8.0


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE123456789")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws-secret-abcdefghijklmnop")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def transport(**others):
    given = {"seed": 1, "sleep": lambda _: None, "secrets": Secrets({}), "seconds": SECONDS} | others
    return Transport(**({"retry": Retry(tries=1)} | given))


def ended(what: str = "request") -> bool:
    """Return whether no thread of that name is left, after a while."""
    until = time.monotonic() + PATIENCE
    while any(thread.name == what for thread in threading.enumerate()) and time.monotonic() < until:
        time.sleep(0.02)
    return all(thread.name != what for thread in threading.enumerate())


def given_up(way: str, scheme: str) -> None:
    """Send a single request to a server that drips in the given way."""
    with dripping(way) as server:
        made = transport()
        began = time.monotonic()
        with pytest.raises(
            FetchError, match=r"did not answer in 0\.3 s|cannot be reached|cut the conn|answered"
        ):
            made.ask_json("GET", server.url.replace("http:", f"{scheme}:"))
        assert time.monotonic() - began < SECONDS + PATIENCE, way
        made.close()
        until = time.monotonic() + PATIENCE
        while not server.cut and time.monotonic() < until:
            time.sleep(0.02)
        assert server.cut, f"{way}: the connection was left open"


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_that_drips_is_given_up_in_time(scheme):
    with ThreadPoolExecutor(len(WAYS)) as all_at_once:
        for way, done in [(way, all_at_once.submit(given_up, way, scheme)) for way in WAYS]:
            assert done.exception() is None, way
    assert ended(), "the thread of a request that was given up goes on"


@pytest.mark.parametrize("way", ["headers", "the body", "trailers after the last chunk"])
def test_boto_waits_no_longer_than_others(way):
    with dripping(way) as server:
        began = time.monotonic()
        options = {"endpoint_url": server.url, "regions": ["us-east-1"]}
        (found,) = items("aws-spot", options, transport=transport())
        assert time.monotonic() - began < SECONDS + PATIENCE
        assert isinstance(found, PartFailed)
        assert "did not answer in 0.3 s" in found.reason
        assert ended()


def test_boto_reads_no_more_than_others():
    with serve(lambda _: Reply("<a>" + "x" * 300_000)) as server:
        options = {"endpoint_url": server.url, "regions": ["us-east-1"]}
        (found,) = items("aws-spot", options, transport=transport(largest=100_000, seconds=5.0))
    assert "answered with more than 100,000 bytes" in found.reason


def test_after_a_request_that_was_given_up_the_next_one_is_answered():
    made = transport()
    with dripping("the body") as slow, pytest.raises(FetchError):
        made.ask_json("GET", slow.url)
    with serve(lambda _: Reply({"a": "b"})) as server:
        assert made.ask_json("GET", server.url) == {"a": "b"}
        assert made.ask_json("GET", server.url) == {"a": "b"}
    made.close()


def test_all_requests_of_a_fetch_together_are_bounded():
    made = transport(budget=0.0, retry=Retry(tries=5))
    with serve(lambda _: Reply({})) as server, pytest.raises(FetchError, match="time for this fetch is over"):
        made.ask_json("GET", server.url)
    assert made.out_of_time
    assert server.seen == []


@pytest.mark.parametrize("date", ["Mon, 05 Jan 99999 12:00:00 GMT", "Fri, 31 Dec 9999 23:59:59 -2359"])
def test_a_date_that_is_none_is_no_failure(date):
    with serve(lambda _: Reply({"a": "b"}, status=200, headers={"X-Date": date})) as server:
        made = transport(seconds=5.0)
        assert made.ask_json("GET", server.url) == {"a": "b"}
        before = made.server_date
        made.note_date(date)
        assert made.server_date == before
        made.close()
