"""Delivery of decisions to real folders and to a real HTTP server that refuses, hangs, drips, truncates and redirects."""

import contextlib
import json
import os
import socket
import socketserver
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest
from advice_kit import (
    BEGIN,
    SETTINGS,
    STEP,
    decided_row,
    handed,
    job_store,
    keep,
    new_store,
    request,
    turn_at,
)
from forms_kit import quick_first
from make import make_turn
from pydantic import ValidationError

from slackwater.flows.config import Sink, read_settings
from slackwater.flows.delivery import Timing, deliveries_of, file_name, folder_name, signed_headers
from slackwater.flows.ledger.decisions import document
from slackwater.flows.ledger.jobs import find_job
from slackwater.flows.ledger.reports import Report, save_report
from slackwater.flows.turn import stages
from slackwater.flows.turn.stages import TurnProgress, whole_turn
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.plugins import EXTRAS

TOKEN, SECRET = "tok-4f2c8a", "key-91bb07"


@dataclass
class Server:
    """HTTP server on loopback; each word of ``script`` sets the reply to one request, the last word to all further requests."""

    script: list[str] = field(default_factory=lambda: ["200"])
    got: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)
    elsewhere: str = ""
    done: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/hooks/path-is-a-secret?key=hidden"

    def handle(self, connection):
        stream = connection.makefile("rb")
        start = stream.readline().decode()
        headers = {}
        while line := stream.readline().strip():
            name, _, value = line.decode().partition(":")
            headers[name.lower()] = value.strip()
        body = stream.read(int(headers.get("content-length", 0)))
        self.got.append((start.split()[1], headers, body))
        word = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        getattr(self, f"_{word}", lambda c: self._status(c, int(word)))(connection)

    def _status(self, connection, status):
        extra = f"Location: {self.elsewhere}\r\n" if 300 <= status < 400 else ""
        connection.sendall(f"HTTP/1.1 {status} X\r\n{extra}Content-Length: 0\r\n\r\n".encode())

    def _cut(self, connection):
        connection.sendall(b"HTTP/1.1 20")

    def _hang(self, connection):
        self.done.wait(20)

    def _drip(self, connection):
        """Send a byte at a time, so that no single read times out."""
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: " + b"y" * 400:
            if self.done.wait(0.05):
                return
            connection.sendall(bytes([byte]))

    def _endless(self, connection):
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not self.done.is_set():
            connection.sendall(b"400\r\n" + b"z" * 0x400 + b"\r\n")

    def _nonsense(self, connection):
        connection.sendall(b"\x00\xff not http at all\r\n\r\n")


@contextlib.contextmanager
def serving(**terms):
    server = Server(**terms)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with contextlib.suppress(OSError):
                server.handle(self.request)

    class Listener(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Listener(("127.0.0.1", 0), Handler) as listener:
        server.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.done.set()
            listener.shutdown()


class Watch:
    """Clock that advances by recorded waits, and by ``tick`` at every reading."""

    def __init__(self, tick=0.0):
        self.waits, self.time, self.tick = [], 0.0, tick

    def pace(self):
        return Timing(sleep=self.sleep, clock=self.clock)

    def clock(self):
        self.time += self.tick
        return self.time

    def sleep(self, seconds):
        self.waits.append(seconds)
        self.time += seconds


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Return three real decisions of one job, in slots 0 to 2."""
    with new_store(tmp_path_factory.mktemp("market")) as store:
        return [decided_row(store, slot, decided={}) for slot in range(3)]


@pytest.fixture
def store(tmp_path):
    with job_store(tmp_path) as opened:
        yield opened


@pytest.fixture
def small_turn(tmp_path):
    """Run two small turns with a file sink and a progress report in between; return their decisions and the folder."""
    settings = SETTINGS.model_copy(
        update={
            "models": ("last_value",), "planner": "last_value", "measured_origins": 2, "horizon": 2, "planning_horizon": 4,
            "max_markets": 1,
            "sinks": (Sink(name="drop", kind="file", folder=tmp_path / "drop"),),
        }
    )  # fmt: skip
    found = []
    with new_store(tmp_path) as store:
        for slot in (0, 1):
            if slot:
                at = BEGIN + STEP
                said = Report(job="demo", reported_at=at, known_at=at, progress=9.0, spot=5)
                save_report(store, said, find_job(store, "demo"))
            turn = make_turn(store, BEGIN + slot * STEP, settings)
            asked = [] if slot else [request()]
            found.append(whole_turn(turn, data=tmp_path / "data", requests=asked, report=None).decisions)
    return *found, tmp_path / "drop"


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    monkeypatch.setenv("HOOK_TOKEN", TOKEN)
    monkeypatch.setenv("HOOK_SECRET", SECRET)


def hook(server, **terms):
    return Sink(**{"name": "hook", "kind": "webhook", "url": server.url, "token_env": "HOOK_TOKEN",
                   "secret_env": "HOOK_SECRET", "backoff_seconds": 0.5, **terms})  # fmt: skip


def given(store, slot, rows, sink, *, said=None, watch=None):
    """Store the decisions of a turn, deliver them, and return the deliveries."""
    turn = turn_at(store, slot, sinks=[sink], said=said)
    keep(store, turn, rows)
    return handed(turn, rows, pace=(watch or Watch()).pace())


def statuses(deliveries):
    return [(one.status, one.attempts, one.reason) for one in deliveries]


# Webhook


def test_a_decision_is_posted_once_with_key_token_and_signature(store, rows):
    with serving() as server:
        done = given(store, 0, rows[:1], hook(server))
        assert statuses(done) == [("sent", 1, "")]
        assert handed(turn_at(store, 0, sinks=[hook(server)]), rows[:1]) == []
        ((path, headers, body),) = server.got
    assert path == "/hooks/path-is-a-secret?key=hidden"
    assert json.loads(body) == document(rows[0])
    assert headers["idempotency-key"] == document(rows[0])["key"]
    assert headers["authorization"] == f"Bearer {TOKEN}"
    sent = int(headers["webhook-timestamp"])
    assert signed_headers(SECRET, body, key=headers["webhook-id"], sent=sent).items() <= headers.items()
    assert headers["content-type"] == "application/json"


def test_500_then_200_is_tried_again_after_a_wait(store, rows):
    watch = Watch()
    with serving(script=["500", "503", "200"]) as server:
        assert statuses(given(store, 0, rows[:1], hook(server), watch=watch)) == [("sent", 1, "")]
        assert len(server.got) == 3
    assert watch.waits == [0.5, 1.0]


def test_a_failed_decision_is_kept_and_goes_out_in_the_next_turn(store, rows):
    with serving(script=["500"]) as server:
        assert statuses(given(store, 0, rows[:1], hook(server))) == [("failed", 1, "answered 500")]
        assert len(server.got) == 3
        server.script[:] = ["200"]
        done = given(store, 1, rows[1:2], hook(server))
    assert [(one.slot, one.status, one.attempts) for one in done] == [
        (BEGIN + STEP, "sent", 1),
        (BEGIN, "sent", 2),
    ]
    assert [one.reason for one in deliveries_of(store, "demo")] == ["", ""]
    assert [json.loads(body)["slot"] for _, _, body in server.got[3:]] == [rows[1]["slot"], rows[0]["slot"]]


@pytest.mark.parametrize(
    ("word", "attempts", "reason"),
    [
        ("404", 1, "answered 404"),
        pytest.param("401", 1, "answered 401", marks=pytest.mark.slow),
        ("429", 3, "answered 429"),
        pytest.param("cut", 3, "the connection broke (RemoteProtocolError)", marks=pytest.mark.slow),
        ("nonsense", 3, "the connection broke (RemoteProtocolError)"),
        ("hang", 2, "no answer within 0.5 s"),
        ("drip", 2, "no answer within 0.5 s"),
    ],
)
def test_what_goes_wrong_is_named_and_stops_nothing(store, rows, word, attempts, reason):
    said = []
    with serving(script=[word]) as server:
        # A short timeout only where the request must time out: a busy machine may need longer for any reply.
        silent = word in ("hang", "drip")
        sink = hook(server, timeout_seconds=0.5 if silent else 10, attempts=2 if silent else 3)
        done = given(store, 0, rows[:1], sink, said=said)
        assert statuses(done) == [("failed", 1, reason)]
        assert len(server.got) == attempts
    assert said == [f"1 decisions not delivered to hook (http://127.0.0.1:{server.port}): {reason}"]


def test_an_endless_answer_is_not_read(store, rows):
    with serving(script=["endless"]) as server:
        assert statuses(given(store, 0, rows[:1], hook(server))) == [("sent", 1, "")]


def test_nobody_there_is_named(store, rows):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        sink = Sink(name="hook", kind="webhook", url=url, attempts=1)
        assert statuses(given(store, 0, rows[:1], sink)) == [("failed", 1, "no connection")]


def test_without_the_extra_http_nothing_is_sent_and_the_remedy_is_named(store, rows, monkeypatch):
    """No attempt is counted, so that the sink is not given up before the extra is installed."""
    with serving() as server:
        monkeypatch.setitem(EXTRAS, "http", ("no_such_module",))
        ((status, attempts, reason),) = statuses(given(store, 0, rows[:1], hook(server)))
        assert (status, attempts) == ("failed", 0)
        assert reason.startswith("the sink 'hook' needs no_such_module, which is not installed; ")
        assert reason.endswith('pip install "slackwater[http]"')
        assert server.got == []
        monkeypatch.undo()
        monkeypatch.setenv("HOOK_TOKEN", TOKEN)
        monkeypatch.setenv("HOOK_SECRET", SECRET)
        assert statuses(given(store, 0, rows[:1], hook(server))) == [("sent", 1, "")]


@pytest.mark.parametrize("status", quick_first(["307", "301", "302", "308"]))
def test_a_redirection_is_not_followed_anywhere(store, rows, status):
    with serving() as other, serving(script=[status], elsewhere=other.url) as server:
        ((_, _, reason),) = statuses(given(store, 0, rows[:1], hook(server)))
        assert reason == f"answered {status}, a redirection, which is not followed: give the final address"
        assert other.got == []
        assert len(server.got) == 1


def test_no_more_time_is_spent_than_the_budget_and_the_newest_go_first(store, rows):
    watch = Watch(tick=0.7)
    with serving(script=["500"]) as server:
        sink = hook(server, budget_seconds=2.0, attempts=1)
        done = given(store, 2, rows, sink, watch=watch)
        assert [one.slot for one in done] == [BEGIN + slot * STEP for slot in (2, 1, 0)]
        assert [(one.status, one.attempts) for one in done] == [("failed", 1), ("failed", 0), ("failed", 0)]
        assert done[2].reason == "no time was left for it in this turn"
        assert len(server.got) == 1
        server.script[:] = ["200"]
        assert [one.status for one in given(store, 2, [], sink)] == ["sent"] * 3


def test_after_enough_turns_a_decision_is_given_up(store, rows):
    with serving(script=["500"]) as server:
        sink = hook(server, give_up_after=2, attempts=1)
        given(store, 0, rows[:1], sink)
        assert statuses(given(store, 1, [], sink)) == [("given_up", 2, "answered 500")]
        assert given(store, 2, [], sink) == []


def test_secrets_are_nowhere_in_what_is_kept_or_said(store, rows, capfd, tmp_path, caplog):
    caplog.set_level(0)
    said = []
    for slot, word in enumerate(("500", "cut", "302")):
        with serving(script=[word], elsewhere="http://127.0.0.1:1/?stolen=1") as server:
            sink = hook(server, name=f"hook{slot}")
            given(store, slot, rows[slot : slot + 1], sink, said=said)
    kept = repr(deliveries_of(store, "demo")) + repr(said) + repr(sink) + str(sink)
    shown = capfd.readouterr()
    store.close()
    files = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "data" not in path.parts
    )
    for secret in (TOKEN, SECRET, "path-is-a-secret", "hidden"):
        assert secret not in kept + shown.out + shown.err
        assert secret.encode() not in files
    for secret in (TOKEN, SECRET):
        assert secret not in caplog.text


def test_a_missing_variable_is_a_failure_of_that_sink_alone(store, rows, monkeypatch, tmp_path):
    monkeypatch.delenv("HOOK_TOKEN")
    with serving() as server:
        sinks = [hook(server), Sink(name="drop", kind="file", folder=tmp_path / "drop")]
        done = handed(turn_at(store, 0, sinks=sinks), rows[:1])
        assert server.got == []
    assert statuses(done) == [("failed", 1, "environment variable HOOK_TOKEN is not set"), ("sent", 1, "")]


# Outbox


def test_what_a_killed_turn_left_is_handed_over_later_but_nothing_from_before_the_sink(store, rows):
    keep(store, turn_at(store, 0), rows[:1])  # before the sink was configured
    with serving() as server:
        given(store, 1, rows[1:2], hook(server))
        keep(store, turn_at(store, 2), rows[2:3])  # killed after its decisions were stored
        done = given(store, 3, [], hook(server))
        assert [one.slot for one in done] == [BEGIN + 2 * STEP]
        assert [json.loads(body)["slot"] for _, _, body in server.got] == [rows[1]["slot"], rows[2]["slot"]]


def test_killed_between_sending_and_remembering_sends_the_same_key_again(store, rows, monkeypatch):
    def killed(*_):
        raise KeyboardInterrupt

    with serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr("slackwater.flows.delivery.remember", killed)
            with pytest.raises(KeyboardInterrupt):
                given(store, 0, rows[:1], hook(server))
        assert statuses(given(store, 0, rows[:1], hook(server))) == [("sent", 1, "")]
        assert len({headers["idempotency-key"] for _, headers, _ in server.got}) == 1
        assert len(server.got) == 2


def test_a_backfill_hands_nothing_over_now_or_later(store, rows, tmp_path):
    sink = Sink(name="drop", kind="file", folder=tmp_path / "drop")
    given(store, 0, rows[:1], sink)
    afterwards = turn_at(store, 1, sinks=[sink], made="backfill")
    keep(store, afterwards, rows[1:2])
    stages.deliver(afterwards, TurnProgress(decisions=tuple(rows[1:2])))
    assert [one.slot for one in given(store, 2, rows[2:3], sink)] == [BEGIN + 2 * STEP]
    assert len(list((tmp_path / "drop" / "demo").iterdir())) == 3  # two slots and the latest file


# File sink


def test_files_are_whole_and_latest_is_the_latest(store, rows, tmp_path):
    sink = Sink(name="drop", kind="file", folder=tmp_path / "deep" / "drop")
    given(store, 1, rows[1:2], sink)
    given(store, 2, [rows[2], rows[0]], sink)
    folder = tmp_path / "deep" / "drop" / "demo"
    names = [file_name(pd.Timestamp(row["slot"])) for row in rows]
    assert sorted(path.name for path in folder.iterdir()) == [*names, "latest.json"]
    for name, row in zip(names, rows, strict=True):
        assert json.loads((folder / name).read_text()) == document(row)
    assert json.loads((folder / "latest.json").read_text()) == document(rows[2])


def test_a_damaged_latest_is_replaced(store, rows, tmp_path):
    sink = Sink(name="drop", kind="file", folder=tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "latest.json").write_text('{"slot": ')
    given(store, 0, rows[:1], sink)
    assert json.loads((tmp_path / "demo" / "latest.json").read_text())["slot"] == rows[0]["slot"]


def test_no_job_name_leaves_the_folder(store, rows, tmp_path):
    names = ("../../escape", "/etc/x", "a/../../b", "nul\0byte", "x" * 4000, "..", "a\nb", "\u202egnp")
    inside = tmp_path / "a" / "b" / "drop"
    sink = Sink(name="drop", kind="file", folder=inside)
    for k, name in enumerate(names, start=1):
        (done,) = handed(turn_at(store, 0, sinks=[sink]), [rows[0] | {"job": name}])
        assert done.status == "sent", name
        folder = inside / folder_name(name)
        found = {path.parent for path in tmp_path.rglob("*.json")}
        assert folder in found, name
        assert len(found) == k, name
        assert all(path.parent == inside for path in found), name
        assert {json.loads(path.read_text())["job"] for path in folder.glob("*.json")} == {name}


def test_a_folder_that_cannot_be_written_is_named_and_nothing_half_stays(store, rows, tmp_path):
    (tmp_path / "file").write_text("in the way")
    sink = Sink(name="drop", kind="file", folder=tmp_path / "file" / "drop")
    assert statuses(given(store, 0, rows[:1], sink)) == [("failed", 1, "cannot write: Not a directory")]


def test_a_reader_never_sees_half_a_file(store, rows, tmp_path):
    """A launcher reads continuously while decisions overwrite each other."""
    sink = Sink(name="drop", kind="file", folder=tmp_path / "drop")
    stop, broken, reads = threading.Event(), [], []

    def read():
        while not stop.is_set():
            for path in (tmp_path / "drop").glob("*/*.json"):
                try:
                    reads.append(json.loads(path.read_text())["slot"])
                except ValueError as error:
                    broken.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    long = rows[0] | {"reason": "x" * 200_000}
    for k in range(8):
        handed(turn_at(store, 0, sinks=[sink.model_copy(update={"name": f"d{k}"})]), [long])
    stop.set()
    thread.join()
    assert broken == []
    assert reads
    assert not list(tmp_path.rglob("*.part"))


# Settings


def settings_file(tmp_path, text) -> Path:
    file = tmp_path / "slackwater.toml"
    file.write_text(text)
    return file


def test_sinks_are_read_from_the_settings_file(tmp_path):
    file = settings_file(
        tmp_path,
        '[[sinks]]\nname = "drop"\nkind = "file"\nfolder = "decisions"\n'
        '[[sinks]]\nname = "hook"\nkind = "webhook"\nurl = "https://launcher.example/hook"\ntoken_env = "T"\n',
    )
    assert [(sink.name, sink.place) for sink in read_settings(file).sinks] == [
        ("drop", "decisions"),
        ("hook", "https://launcher.example"),
    ]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ('kind = "webhook"', "needs url"),
        ('kind = "file"', "needs folder"),
        ('kind = "file"\nfolder = "x"\nsecret_env = "S"', "takes no url"),
        ('kind = "webhook"\nurl = "ftp://h/x"', "https://HOST/PATH"),
        ('kind = "webhook"\nurl = "https://u:hunter2@h/x"', "token_env instead"),
        ('kind = "webhook"\nurl = "http://h.example/hunter2"\ntoken_env = "T"', "expected https"),
        ('kind = "webhook"\nurl = "https://h/x"\ntoken_header = "A: b"', "token_header"),
        ('kind = "webhook"\nurl = "https://h:hunter2/x"', "web address"),
        ('kind = "carrier pigeon"', "'file' or 'webhook'"),
        ('kind = "file"\nfolder = "x"\nname = "../x"', "pattern"),
    ],
)
def test_a_wrong_sink_is_refused_without_saying_its_address(tmp_path, terms, words):
    name = "" if "name =" in terms else 'name = "s"\n'
    with pytest.raises(SettingsError) as error:
        read_settings(settings_file(tmp_path, f"[[sinks]]\n{name}{terms}\n"))
    assert words in str(error.value)
    assert "sinks" in str(error.value)
    assert "hunter2" not in str(error.value)


def test_two_sinks_of_one_name_are_refused(tmp_path):
    one = '[[sinks]]\nname = "s"\nkind = "file"\nfolder = "x"\n'
    with pytest.raises(SettingsError, match="two sinks named 's'"):
        read_settings(settings_file(tmp_path, one * 2))


def test_a_validation_error_does_not_repeat_the_address():
    with pytest.raises(ValidationError) as error:
        Sink(name="s", kind="webhook", url="https://u:hunter2@h/x")
    assert "hunter2" not in str(error.value)


def test_nothing_is_sent_without_sinks(store, rows):
    assert handed(turn_at(store, 0), rows) == []
    assert os.environ["HOOK_TOKEN"] == TOKEN


def test_a_whole_turn_hands_its_decisions_over_and_starts_from_reports(small_turn):
    """Two complete turns: the files equal the decisions, and a report changes the state that the second turn starts from."""
    first, second, drop = small_turn
    assert {row["job"] for row in first} >= {"demo"}
    for rows in (first, second):
        for row in rows:
            file = drop / folder_name(row["job"]) / file_name(pd.Timestamp(row["slot"]))
            assert json.loads(file.read_text()) == document(row)
    (row,) = [row for row in second if row["job"] == "demo"]
    assert (row["progress_from"], row["progress"], row["held_before"]) == ("reported", 9.0, 5)
    assert {row["progress_from"] for row in second if row["job"] != "demo"} <= {"decided"}
