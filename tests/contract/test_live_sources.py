"""What every live source must do: check its options, answer in bounded pages of canonical rows, fail in words, never peek."""

import datetime as dt
import os

import pytest
from loopback import AT, Reply, serve

from warehouse.errors import FetchError, SettingsError
from warehouse.sources import LIVE_SOURCES
from warehouse.sources.contract import AVAILABILITY_COLUMNS, PRICE_COLUMNS, REJECTED_COLUMNS
from warehouse.sources.live.contract import FetchedPage, FetchRequest, Mark, PartFailed
from warehouse.sources.live.transport import Retry, Transport

COLUMNS = {"price": PRICE_COLUMNS, "availability": AVAILABILITY_COLUMNS, "rejected": REJECTED_COLUMNS}
#: Every source with the example that it gives of itself.
EXAMPLES = {name: source.example for name, source in LIVE_SOURCES.items()}
SECRETS = {
    variable: f"secret-of-{variable.lower()}-0123456789"
    for example in EXAMPLES.values()
    for variable in example.credentials
}
#: The option that holds the address, by source; a probe has none.
ADDRESS = {
    name: next((option for option in ("url", "endpoint_url") if option in source.options), None)
    for name, source in LIVE_SOURCES.items()
}


def answer_of(name):
    """Answers each request with the example's answer."""
    text = EXAMPLES[name].answer
    form = "text/xml;charset=UTF-8" if text.startswith("<") else "application/json"
    return lambda _: Reply(text, headers={"Content-Type": form})


_ECHO = " ".join(SECRETS.values())
#: Answers that are of no API's form, and tell our secrets back to us.
BROKEN = {
    "out of order": Reply(_ECHO, status=503),
    "refused": Reply(_ECHO, status=403),
    "html": Reply(f"<html>{_ECHO}", headers={"Content-Type": "text/html"}),
    "other json": Reply({"message": _ECHO}),
    "cut": Reply(_ECHO, cut=10),
}


@pytest.fixture(autouse=True)
def surroundings(monkeypatch, tmp_path):
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "https_proxy",
        "all_proxy",
        "AWS_PROFILE",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))


def asked(options, **others) -> FetchRequest:
    return FetchRequest(options=options, at=AT.to_pydatetime(), every=dt.timedelta(hours=1), **others)


def options_of(name, url="http://host/"):
    address = ADDRESS[name]
    return EXAMPLES[name].options | ({address: url} if address else {})


def fetched(name, server, **others):
    options = options_of(name, server.url)
    transport = Transport(seed=1, retry=Retry(tries=2), seconds=5.0, sleep=lambda _: None)
    try:
        return list(LIVE_SOURCES[name].fetch(asked(options, **others), transport))
    finally:
        transport.close()


def test_every_live_source_is_here():
    for name, source in LIVE_SOURCES.items():
        assert source.name == name
        assert all(source.options.values())


@pytest.mark.parametrize("name", EXAMPLES)
class TestEverySource:
    def test_an_unknown_option_is_refused(self, name):
        with pytest.raises(SettingsError, match=r"option 'no_such_option' of the source .*expected one of"):
            LIVE_SOURCES[name].check(EXAMPLES[name].options | {"no_such_option": "1"})

    def test_options_of_the_wrong_type_are_refused(self, name):
        options = options_of(name)
        for option in LIVE_SOURCES[name].options:
            with pytest.raises(SettingsError, match=f"option {option}"):
                LIVE_SOURCES[name].check(options | {option: object()})

    def test_checking_asks_nobody_and_needs_no_credentials(self, name, monkeypatch):
        for secret in SECRETS:
            monkeypatch.delenv(secret)
        with serve(answer_of(name)) as server:
            source = LIVE_SOURCES[name]
            source.check(options_of(name, server.url))
            words = source.assumptions(options_of(name, server.url))
            assert server.seen == []
        assert isinstance(words, tuple)

    def test_rows_are_canonical_and_never_from_after_the_logical_time(self, name):
        with serve(answer_of(name)) as server:
            found = fetched(name, server)
        rows = 0
        for item in found:
            assert isinstance(item, FetchedPage)
            for batch in item.batches:
                assert tuple(batch.table.column_names) == COLUMNS[batch.kind]
                rows += batch.table.num_rows
                for row in batch.table.to_pylist():
                    assert row["source"]
                    assert row["known_at"] is None
                    at = row["observed_at"]
                    at = dt.datetime.fromisoformat(at) if isinstance(at, str) else at
                    assert at <= AT.to_pydatetime()
        assert rows >= 1
        assert found[-1].token is None

    def test_the_same_answers_give_the_same_pages(self, name):
        with serve(answer_of(name)) as server:
            first, second = fetched(name, server), fetched(name, server)
        assert [(page.part, page.token, page.notes) for page in first] == [
            (page.part, page.token, page.notes) for page in second
        ]
        tables = [[batch.table for page in found for batch in page.batches] for found in (first, second)]
        assert all(one.equals(other) for one, other in zip(*tables, strict=True))

    def test_a_part_that_is_done_at_this_time_is_not_asked_again(self, name):
        with serve(answer_of(name)) as server:
            parts = {page.part for page in fetched(name, server)}
            server.seen.clear()
            done = {part: Mark(done_at=AT.to_pydatetime()) for part in parts}
            assert fetched(name, server, marks=done) == []
            assert server.seen == []

    @pytest.mark.parametrize("broken", BROKEN)
    def test_a_server_out_of_order_is_a_failure_in_words_without_secrets(self, name, broken):
        if ADDRESS[name] is None:
            pytest.skip("asks no server")
        with serve(lambda _: BROKEN[broken]) as server:
            try:
                found = fetched(name, server)
            except FetchError as error:
                words = [str(error)]
            else:
                words = [item.reason for item in found if isinstance(item, PartFailed)]
        assert words
        assert all(words)
        assert not any(secret in text for secret in SECRETS.values() for text in words)


def test_no_secret_is_left_in_the_surroundings_of_a_probe_by_us():
    """A probe inherits the user's own environment, and nothing we add to it."""
    before = dict(os.environ)
    with serve(lambda _: Reply("")) as server:
        fetched("probe", server)
    assert dict(os.environ) == before
