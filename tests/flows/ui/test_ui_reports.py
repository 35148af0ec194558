"""Reports on jobs by HTTP: the token, the refusals, and the same record as `slackwater job report`."""

from __future__ import annotations

import asyncio
import json
import threading
from types import SimpleNamespace

import httpx
import pandas as pd
import pytest
import uvicorn
from advice_kit import BEGIN, job_store
from command_kit import call

from slackwater.flows.acting.trainer import ProgressCallback
from slackwater.flows.config import Settings
from slackwater.flows.ledger.reports import reports_of
from slackwater.flows.ui.app import make_app
from slackwater.flows.ui.command import bound_socket
from slackwater.flows.ui.reading import Snapshots
from slackwater.flows.ui.reports import MOST_BYTES, ReportReceiver
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.store.connection import open_store

TOKEN = "0123456789abcdef0123"
SETTINGS = Settings(report_token_env="THE_TOKEN")
NOW = BEGIN + pd.Timedelta(hours=1)
PATH = "/api/jobs/demo/report"


def door_of(db, *, bound="127.0.0.1", settings=SETTINGS, token=TOKEN):
    return ReportReceiver.of(db, settings, clock=lambda: NOW, bound=bound, environment={"THE_TOKEN": token})


class Server:
    """The app on a warehouse with a job, asked without a network."""

    def __init__(self, folder, bound="127.0.0.1"):
        with job_store(folder):
            self.db = folder / "w.duckdb"
        snapshots = Snapshots(self.db, SETTINGS, lambda: NOW)
        self.app = make_app(snapshots, bound=bound, receiver=door_of(self.db, bound=bound))

    def post(self, body, *, path=PATH, token=TOKEN, method="POST"):
        headers = {"authorization": f"Bearer {token}"} if token else {}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()

        async def ask():
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8642") as client:
                return await client.request(method, path, content=content, headers=headers)

        return asyncio.run(ask())

    def reports(self):
        with open_store(self.db) as store:
            return reports_of(store, "demo")


@pytest.fixture
def server(tmp_path):
    return Server(tmp_path)


def test_a_report_is_stored_and_answered_as_by_the_command(server, tmp_path):
    (tmp_path / "other").mkdir()
    given = {"progress": 5.0, "spot": 2, "on_demand": 1, "boot_minutes": 3.0, "checkpoint_minutes": 12.0}
    answer = server.post(given | {"at": NOW.isoformat()})
    words = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    with job_store(tmp_path / "other"):
        db = tmp_path / "other" / "w.duckdb"
    same = call("job", "report", "demo", "--at", NOW.isoformat(), *words, "--db", db, "--json")
    assert (answer.status_code, answer.json()) == (200, same.value)
    assert server.reports()[0].measured == {"boot_minutes": 3.0, "checkpoint_minutes": 12.0}
    assert server.post(given | {"at": NOW.isoformat()}).json()["added"] is False
    assert len(server.reports()) == 1


def test_what_is_refused_is_named_and_stores_nothing(server):
    for options, code, told in (
        ({"token": ""}, 401, "no valid token"),
        ({"token": TOKEN[:-1] + "x"}, 401, "no valid token"),
        ({"path": "/api/jobs/other/report"}, 404, "other"),
        ({"body": b"{"}, 422, "Invalid JSON"),
        ({"body": {"progres": 1.0}}, 422, "progres"),
        ({"body": {"progress": -1.0}}, 422, "progress"),
        ({"body": {"progress": True}}, 422, "progress"),
        ({"body": {"spot": "1_0"}}, 422, "spot"),
        ({"body": {"spot": True}}, 422, "spot"),
        ({"body": b'{"progress": NaN}'}, 422, "progress"),
        ({"body": {"at": "2035-01-01T00:00Z", "progress": 1.0}}, 422, "2035-01-01"),
        ({"body": b" " * (MOST_BYTES + 1)}, 413, "65,536 bytes"),
        ({"method": "GET"}, 405, ""),
        ({"path": "/jobs"}, 405, ""),
    ):
        given = {"body": {"progress": 1.0}} | options
        answer = server.post(given.pop("body"), **given)
        assert answer.status_code == code, options
        if told:
            assert told in answer.json()["error"]["found"]
    assert server.reports() == []


@pytest.mark.parametrize(
    "body",
    [
        {"at": "noon", "progress": 1.0}, {"at": "2035-01-01T00:00Z", "progress": 1.0}, {"known_at": "x", "progress": 1.0},
        {"progress": 1.0, "progress_share": 0.5}, {"tokens": 5.0}, {}, {"asked": 3}, {"granted": 3, "asked": 2},
        {"market": "lab/r/z/other", "spot": 1}, {"progress": 1.0, "finished": True},
    ],
)  # fmt: skip
def test_a_refusal_names_the_keys_of_a_request_and_no_option(server, body):
    answer = server.post(body)
    assert answer.status_code == 422
    said = " ".join(answer.json()["error"].values()).replace("job report --help", "")
    assert "--" not in said


def test_at_another_address_reports_need_tls(tmp_path):
    server = Server(tmp_path, bound="0.0.0.0")
    assert "without TLS" in server.post({"progress": 1.0}).json()["error"]["found"]
    behind = SETTINGS.model_copy(update={"report_behind_tls": True})
    assert door_of(server.db, bound="0.0.0.0", settings=behind).refused == ""


def test_without_a_setting_nothing_is_taken_and_a_short_token_is_refused(tmp_path):
    assert door_of(tmp_path / "w.duckdb", settings=Settings()) is None
    with pytest.raises(SettingsError, match="THE_TOKEN holds no token"):
        door_of(tmp_path / "w.duckdb", token="short")


def test_the_callback_posts_what_is_saved_and_never_stops_the_training(server, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SLACKWATER_REPORT_TOKEN", TOKEN)
    taken = bound_socket("127.0.0.1", 0)
    served = uvicorn.Server(uvicorn.Config(server.app, log_level="error", lifespan="off"))
    thread = threading.Thread(target=served.run, kwargs={"sockets": [taken]})
    taken.listen(8)
    thread.start()
    seconds = [BEGIN.timestamp() + 120.0]
    url = f"http://127.0.0.1:{taken.getsockname()[1]}{PATH}"
    callback = ProgressCallback(tmp_path / "out", url=url, clock=lambda: seconds[0])
    state = SimpleNamespace(global_step=1, max_steps=400, is_world_process_zero=True)
    for event, step, minutes in (("on_step_end", 1, 6), ("on_save", 100, 20), ("on_save", 200, 38)):
        seconds[0], state.global_step = BEGIN.timestamp() + 60.0 * minutes, step
        getattr(callback, event)(None, state, None)
    served.should_exit = True
    thread.join()
    taken.close()
    assert capsys.readouterr().err == ""
    callback.on_save(None, state, None)  # nobody answers any more
    assert "not delivered" in capsys.readouterr().err
    first, second = server.reports()
    assert (first.progress, second.progress) == (5.0, 10.0)
    assert second.measured == {"restart_minutes": 4.0, "checkpoint_minutes": 18.0}
