"""The request guard of our servers, tested on an app that answers every request (test_runs.py attacks a real server)."""

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from slackwater.flows.engine.guard import Guard

GUARD = {"bound": "127.0.0.1", "names": ["team.example"]}


async def echo(scope, receive, send):
    """ASGI app that answers every request."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1000})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


HOSTS = [
    ("localhost:4200", 200),
    ("127.0.0.1:4200", 200),
    ("[::1]:4200", 200),
    ("team.example", 200),
    ("evil.example", 421),
    ("", 421),
]
ORIGINS = [(None, 200), ("http://localhost:4200", 200), ("http://evil.example", 403), ("null", 403),
           ("http://localhost:9999", 403), ("http://localhost.evil.example:4200", 403)]  # fmt: skip


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_a_foreign_host_name_is_refused(host, status):
    answer = TestClient(Guard(echo, **GUARD)).post("/api/x", headers={"host": host})
    assert answer.status_code == status


@pytest.mark.parametrize(("origin", "status"), ORIGINS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_page_of_another_site_is_refused(origin, status, method):
    headers = {"host": "localhost:4200", "content-type": "text/plain"} | (
        {"origin": origin} if origin else {}
    )
    assert TestClient(Guard(echo, **GUARD)).request(method, "/api/x", headers=headers).status_code == status


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_websocket_of_another_site_is_refused(origin):
    client = TestClient(Guard(echo, **GUARD))
    headers = {"host": "localhost:4200", "origin": origin}
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/events/in", headers=headers):
        pytest.fail("it was accepted")
