"""Alarms on a real Prefect server: events are stored, and the automations of ``docs/monitoring.md`` are accepted and react."""

import re
import threading
import time
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from uuid import UUID

import pandas as pd
import pytest
import yaml
from make import make_turn
from test_alarms import AT, HALF, MARKET, every, lively, put

from slackwater.flows.config import Settings
from slackwater.flows.engine.run import prepare_engine
from slackwater.flows.monitoring.alarms import AlarmChanges
from slackwater.flows.monitoring.alerts import raise_alarms
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.store.connection import open_store

DOCUMENT = Path(__file__).parents[3] / "docs" / "monitoring.md"
#: Placeholder of the document for the identifier of the reader's block.
NO_BLOCK = "00000000-0000-0000-0000-000000000000"


class Hook:
    """Webhook on loopback that stores received bodies; `wait` returns them once enough have arrived."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.come = threading.Condition()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"])).decode()
                with hook.come:
                    hook.bodies.append(body)
                    hook.come.notify_all()
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def wait(self, n: int) -> list[str]:
        with self.come:
            self.come.wait_for(lambda: len(self.bodies) >= n, timeout=90)
            return list(self.bodies)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("engine")
    patch.setenv("PREFECT_HOME", str(folder / ".prefect"))
    prepare_engine(folder)
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield folder
    patch.undo()


def first_yaml() -> str:
    """Return the automation of the document: its first YAML block; later blocks are not for Prefect."""
    return re.findall(r"```yaml\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)[0]


def create_automation_for_every_alarm(url: str) -> UUID:
    """Create an automation that posts raised and cleared alarms to a webhook, and return the id of the webhook's block."""
    from prefect.automations import Automation
    from prefect.blocks.webhook import Webhook
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import EventTrigger, Posture

    block_id = Webhook(method="POST", url=url).save("slackwater-alarms", overwrite=True)
    Automation(
        name="slackwater-any-alarm",
        trigger=EventTrigger(
            posture=Posture.Reactive,
            expect={"slackwater.alarm.raised", "slackwater.alarm.cleared"},
            for_each={"prefect.resource.id", "slackwater.alarm.kind"},
            threshold=1,
        ),
        actions=[
            CallWebhook(block_document_id=block_id, payload="{{ event.event }}: {{ event.payload.text }}")
        ],
    ).create()
    return block_id


def warehouse(folder: Path, *, end: pd.Timestamp) -> Path:
    """Return a warehouse with a market whose counts end at ``end``, and a forecast of it."""
    db = folder / f"{end:%d%H%M}.duckdb"
    with open_store(db) as store:
        times = every(10, end=end)
        put(store, "availability", times, lively(len(times)))
        put(store, "price", times[::36], [1.0] * len(times[::36]))
        store.execute(
            "INSERT INTO vintages VALUES (1, ?, ?, 'combined', ?, 1800, ?, 48, 16, '', '', FALSE)",
            [*MARKET, end.to_pydatetime(), end.to_pydatetime()],
        )
    return db


@pytest.mark.slow
@pytest.mark.engine
def test_an_alarm_reaches_the_webhook_of_the_documented_automations(server):
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore

    from slackwater.flows.monitoring.flow import status

    hook = Hook()
    block_id = create_automation_for_every_alarm(f"http://127.0.0.1:{hook.server.server_port}/")
    document = first_yaml()
    assert NO_BLOCK in document
    written = yaml.safe_load(document.replace(NO_BLOCK, str(block_id)))
    with get_client(sync_client=True) as client:
        client.create_automation(AutomationCore.model_validate(written))
        names = {one.name for one in client.read_automations()}
    assert names == {"slackwater-serious-alarm", "slackwater-any-alarm"}

    db = warehouse(server, end=AT - pd.Timedelta(hours=3))
    page = server / "status.html"
    assert status(db=server / "before-the-first-turn.duckdb", html=page) == {}
    assert not page.exists()
    answer = status(db=db, at=AT.to_pydatetime(), html=page)
    assert [one["kind"] for one in answer["alarms"]] == ["stale source"]
    told = hook.wait(2)
    text = answer["alarms"][0]["text"]
    subject = f"{MARKET[0]}@{MARKET[1]} count"
    assert sorted(told) == [f"slackwater.alarm.raised: {text}", f"stale source: {subject}: {text}"]
    assert page.read_text().startswith("<!DOCTYPE html>")

    assert status(db=db, at=(AT + HALF).to_pydatetime())["alarms"][0]["raised_at"] == AT.isoformat()
    with open_store(db) as store:
        times = every(10, days=0.2, end=AT + 2 * HALF)[1:]
        times = times[times > AT - pd.Timedelta(hours=3)]
        put(store, "availability", times, lively(len(times)))
    assert status(db=db, at=(AT + 2 * HALF).to_pydatetime())["alarms"] == []
    assert hook.wait(3)[2].startswith("slackwater.alarm.cleared: ")
    assert len(hook.bodies) == 3  # the second status call sent nothing
    with open_store(db) as store:
        kept = read_rows(store, "alarms")
    assert kept[["raised_at", "cleared_at"]].to_numpy().tolist() == [[AT, AT + 2 * HALF]]
    events = stored_events(2)
    assert [one["event"] for one in events] == ["slackwater.alarm.raised", "slackwater.alarm.cleared"]
    assert {one["resource"]["prefect.resource.id"] for one in events} == {f"slackwater.market.{MARKET[0]}"}


def test_the_end_of_a_turn_tells_alarms_once_but_not_of_a_history(tmp_path, monkeypatch):
    from slackwater.flows.monitoring import flow as events

    emitted: list[dict] = []
    monkeypatch.setattr(events, "emit_event", lambda **told: emitted.append(told))
    db = warehouse(tmp_path, end=AT - pd.Timedelta(hours=5))
    with open_store(db) as store:
        turn = make_turn(store, AT, Settings())
        emit = partial(events.emit_alarms, run=turn.run_id)
        assert raise_alarms(replace(turn, own_end=True), emit=emit) == AlarmChanges()
        settled = raise_alarms(turn, emit=emit)
        assert [(one.kind, one.market) for one in settled.raised] == [("stale source", MARKET[0])]
        assert raise_alarms(turn, emit=emit) == AlarmChanges()
        assert len(read_rows(store, "alarms")) == 1
    assert [one["event"] for one in emitted] == ["slackwater.alarm.raised"]
    assert emitted[0]["resource"]["prefect.resource.id"] == f"slackwater.market.{MARKET[0]}"
    assert emitted[0]["payload"]["run"] == turn.run_id


def stored_events(n: int) -> list[dict]:
    """Return the events stored by the server once there are ``n``; the server writes them in batches."""
    from prefect.client.orchestration import get_client

    body = {"filter": {"event": {"prefix": ["slackwater."]}, "order": "ASC"}}
    with get_client(sync_client=True) as client:
        for _ in range(120):
            found = client._client.post("/events/filter", json=body).json()["events"]
            if len(found) >= n:
                break
            time.sleep(0.5)
    return found
