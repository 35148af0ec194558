"""Requests: bounded in time, retried as documented, without leaking secrets."""

import gzip
import logging
import os
import shutil

import certifi
import pandas as pd
import pytest
from loopback import AT, Reply, serve

from slackwater.warehouse.errors import FetchError
from slackwater.warehouse.sources.live.transport import Retry, Secrets, Transport, _tls_context, printable_url

NO_ENVIRONMENT: dict[str, str] = {}


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


def transport(**others):
    waits: list[float] = []
    made = Transport(
        **{"seed": 1, "sleep": waits.append, "secrets": Secrets(NO_ENVIRONMENT), "seconds": 5.0} | others
    )
    return made, waits


def test_an_answer_is_read_with_its_date():
    with serve(lambda seen: Reply({"a": 1.50, "b": float("nan")})) as server:
        made, waits = transport()
        # Numbers are returned as the original text.
        assert made.ask_json("GET", server.url) == {"a": "1.5", "b": "NaN"}
        assert made.server_date == AT.to_pydatetime()
        assert (made.requests, waits) == (1, [])
        made.close()


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_throttling_and_server_errors_are_asked_again(status):
    with serve(lambda seen: Reply({"ok": True})) as server:
        server.faults = {1: Reply("busy", status=status), 2: Reply("busy", status=status)}
        made, waits = transport()
        assert made.ask_json("GET", server.url) == {"ok": True}
        assert made.requests == len(server.seen) == 3
        assert len(waits) == 2


def test_retry_after_is_the_least_wait():
    with serve(lambda seen: Reply({})) as server:
        later = AT + pd.Timedelta(seconds=11)
        server.faults = {
            1: Reply("", status=429, headers={"Retry-After": "7"}),
            2: Reply("", status=503, headers={"Retry-After": later.strftime("%a, %d %b %Y %H:%M:%S GMT")}),
            3: Reply("", status=503, headers={"Retry-After": "soon"}),
        }
        made, waits = transport()
        made.ask_json("GET", server.url)
        assert waits[0] >= 7
        assert waits[1] >= 11
        assert waits[2] <= 2.0


def test_a_wait_longer_than_allowed_is_not_made():
    with serve(lambda seen: Reply("", status=429, headers={"Retry-After": "3600"})) as server:
        made, waits = transport()
        with pytest.raises(FetchError, match=r"429 Too Many Requests.*ask less often"):
            made.ask_json("GET", server.url)
        assert (made.requests, waits) == (1, [])


def test_backoff_has_full_jitter_from_the_seed_and_a_bound():
    with serve(lambda seen: Reply("", status=503)) as server:
        found = []
        for seed in (1, 1, 2):
            made, waits = transport(seed=seed, retry=Retry(tries=6, base=0.5, longest=4.0))
            with pytest.raises(FetchError, match=r"503 Service Unavailable \(6 tries\)"):
                made.ask_json("GET", server.url)
            found.append(waits)
        assert found[0] == found[1] != found[2]
        ceilings = [0.5, 1.0, 2.0, 4.0, 4.0]
        assert all(0 <= wait <= most for wait, most in zip(found[0], ceilings, strict=True))
        made, waits = transport(retry=Retry(tries=50, base=4.0, longest=4.0, total=10.0))
        with pytest.raises(FetchError):
            made.ask_json("GET", server.url)
        assert sum(waits) <= 10.0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Reply({"rows": list(range(500))}, cut=100), "cut the connection"),
        (Reply("<html>log in</html>", headers={"Content-Type": "text/html"}), "text/html that is not JSON"),
        (Reply('{"a": [1, 2'), "not JSON"),
        (Reply("[" * 100_000), "not JSON"),
        (Reply(b"\xff\xfe\x00bad"), "not UTF-8"),
        (Reply("not gzip", headers={"Content-Encoding": "gzip"}), "unreadable"),
        (Reply({}, slow=1.0), "did not answer"),
    ],
)  # fmt: skip
def test_a_broken_answer_is_asked_for_again_and_told(fault, words):
    with serve(lambda seen: Reply({"a": "b"})) as server:
        server.faults = {1: fault}
        made, _ = transport(seconds=0.4)
        assert made.ask_json("GET", server.url) == {"a": "b"}
        assert made.requests == 2
        server.faults = dict.fromkeys(range(1, 99), fault)
        made, _ = transport(seconds=0.4, retry=Retry(tries=2))
        with pytest.raises(FetchError, match=words):
            made.ask_json("GET", server.url)


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 501])
def test_a_refusal_is_not_asked_again(status):
    with serve(
        lambda seen: Reply("no", status=status, headers={"Location": "http://example.invalid/"})
    ) as server:
        made, waits = transport()
        with pytest.raises(FetchError, match=f"answered {status}"):
            made.ask_json("GET", server.url)
        assert (len(server.seen), waits) == (1, [])


BOMB = Reply(gzip.compress(b"0" * 20_000_000), headers={"Content-Encoding": "gzip"})


@pytest.mark.parametrize("large", [Reply("x" * 200_000), BOMB])
def test_too_large_an_answer_is_refused(large):
    with serve(lambda seen: large) as server:
        made, _ = transport(largest=100_000)
        with pytest.raises(FetchError, match="more than 100,000 bytes"):
            made.ask_json("GET", server.url)
        assert len(server.seen) == 1


def test_nobody_there_is_told_without_the_parameters():
    made, _ = transport(retry=Retry(tries=2))
    with pytest.raises(
        FetchError, match=r"http://127.0.0.1:9/x cannot be reached \(ConnectError\)"
    ) as raised:
        made.ask_json("GET", "http://127.0.0.1:9/x", params={"key": "hidden-key"})
    assert "hidden-key" not in str(raised.value)
    with pytest.raises(FetchError, match="not a URL that can be asked"):
        made.ask_json("GET", "ftp://127.0.0.1/x")


def test_secrets_come_from_the_environment_and_from_sources():
    secrets = Secrets({"MY_TOKEN": "tok-123456789", "HOME": "/home/somebody", "API_KEY": "short"})
    secrets.add("extra")
    assert secrets.scrub("tok-123456789 /home/somebody short extra") == "*** /home/somebody short ***"


def test_a_server_that_echoes_a_secret_does_not_get_it_printed():
    with serve(lambda seen: Reply(f"bad key {seen.headers['x-key']}", status=400)) as server:
        made, _ = transport(secrets=Secrets({"X_KEY": "very-secret-value"}))
        with pytest.raises(FetchError, match=r"bad key \*\*\*") as raised:
            made.ask_json("GET", server.url, headers={"X-Key": "very-secret-value"})
        assert "very-secret-value" not in str(raised.value)


def test_urls_are_not_logged(caplog):
    with serve(lambda seen: Reply({})) as server, caplog.at_level(logging.INFO):
        made, _ = transport()
        made.ask_json("GET", server.url, params={"key": "hidden-key"})
    assert server.seen[0].query == {"key": "hidden-key"}
    assert "hidden-key" not in caplog.text


def test_a_url_is_shown_without_user_and_query():
    assert printable_url("https://user:pw@host:8443/a/b?key=1#x") == "https://host:8443/a/b"


def test_trusted_certificates_are_read_once_until_their_file_changes(tmp_path, monkeypatch):
    own = tmp_path / "own.pem"
    shutil.copyfile(certifi.where(), own)
    first = _tls_context(str(own))
    assert _tls_context(str(own)) is first
    os.utime(own, ns=(1, 1))
    assert _tls_context(str(own)) is not first
    usual = _tls_context(None)
    assert _tls_context("") is usual
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    assert _tls_context(None) is not usual
    with pytest.raises(FileNotFoundError):
        _tls_context(str(tmp_path / "none.pem"))
