"""Pages of other sites and strangers get nothing from the server that is started here, and paths of runs stay in their folder."""

import os
import stat
from pathlib import Path

import httpx
import pytest
from engine_kit import own_engine
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from flows.engine.guarded import HostGuard
from flows.engine.run import AUTH_FILE, ELSEWHERE, protect_server
from flows.engine.serving import running_server
from flows.paths import SERVED, require_inside
from warehouse.errors import SettingsError


async def echo(scope, receive, send):
    """An app that answers everybody."""
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
    ("evil.example", 421),
    ("", 421),
]
ORIGINS = [(None, 200), ("http://localhost:4200", 200), ("http://evil.example", 403), ("null", 403),
           ("http://localhost:9999", 403), ("http://localhost.evil.example:4200", 403)]  # fmt: skip


@pytest.mark.parametrize(("host", "status"), HOSTS)
def test_a_foreign_host_name_is_refused(host, status):
    answer = TestClient(HostGuard(echo)).post("/api/x", headers={"host": host})
    assert answer.status_code == status


@pytest.mark.parametrize(("origin", "status"), ORIGINS)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_page_of_another_site_is_refused(origin, status, method):
    headers = {"host": "localhost:4200", "content-type": "text/plain"} | (
        {"origin": origin} if origin else {}
    )
    assert TestClient(HostGuard(echo)).request(method, "/api/x", headers=headers).status_code == status


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
def test_a_websocket_of_another_site_is_refused(origin):
    client = TestClient(HostGuard(echo))
    headers = {"host": "localhost:4200", "origin": origin}
    with pytest.raises(WebSocketDisconnect), client.websocket_connect("/api/events/in", headers=headers):
        pytest.fail("it was accepted")


@pytest.fixture
def no_engine(monkeypatch):
    for name in ELSEWHERE:
        monkeypatch.delenv(name, raising=False)


def test_the_text_is_made_once_for_its_user_alone(tmp_path, no_engine, monkeypatch):
    protect_server(tmp_path / "home")
    file = tmp_path / "home" / AUTH_FILE
    first = os.environ["PREFECT_API_AUTH_STRING"]
    assert os.environ["PREFECT_SERVER_API_AUTH_STRING"] == first == file.read_text()
    assert len(first) > 40
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == [AUTH_FILE]
    for name in ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    protect_server(tmp_path / "home")
    assert os.environ["PREFECT_API_AUTH_STRING"] == first
    for name in ELSEWHERE:
        monkeypatch.delenv(name, raising=False)


def test_a_text_that_others_may_read_is_refused(tmp_path, no_engine):
    protect_server(tmp_path)
    for name in ELSEWHERE:
        os.environ.pop(name, None)
    (tmp_path / AUTH_FILE).chmod(0o644)
    with pytest.raises(SettingsError, match="may be read by others"):
        protect_server(tmp_path)


def test_another_server_is_left_alone(tmp_path, no_engine, monkeypatch):
    monkeypatch.setenv("PREFECT_API_URL", "http://prefect.example/api")
    protect_server(tmp_path)
    assert "PREFECT_API_AUTH_STRING" not in os.environ
    assert not (tmp_path / AUTH_FILE).exists()


@pytest.mark.parametrize(
    ("name", "path", "words"),
    [
        ("html", "/etc/cron.d/x.html", "lies outside"),
        ("html", "../x.html", "lies outside"),
        ("db", "../../home/other/w.duckdb", "lies outside"),
        ("html", "link/x.html", "lies outside"),
        ("report", "job.toml", "ends with .html"),
        ("html", ".prefect/auth", "ends with .html"),
    ],
)
def test_a_path_outside_the_folder_is_refused(tmp_path, monkeypatch, name, path, words):
    monkeypatch.delenv(SERVED, raising=False)
    (tmp_path / "link").symlink_to("/tmp")
    with pytest.raises(SettingsError, match=words):
        require_inside(name, Path(path), folder=tmp_path)


def test_what_serve_was_told_to_use_may_be_used(tmp_path, monkeypatch):
    monkeypatch.setenv(SERVED, str(tmp_path / "elsewhere" / "w.duckdb"))
    require_inside("db", tmp_path / "elsewhere" / "w.duckdb", folder=tmp_path / "folder")
    require_inside("html", Path("reports/r.html"), folder=tmp_path)
    with pytest.raises(SettingsError):
        require_inside("html", tmp_path / "elsewhere" / "r.html", folder=tmp_path / "folder")


@pytest.mark.engine
@pytest.mark.slow
def test_an_attack_on_the_real_server_gets_nothing(tmp_path):
    """No list of deployments, no overwritten parameter, no file; its own client goes on."""
    with own_engine(tmp_path / "home"), running_server(tmp_path / "server.log") as url:
        own = tuple(os.environ["PREFECT_API_AUTH_STRING"].split(":", 1))
        ask = f"{url}/deployments/filter"
        assert httpx.post(ask, json={}).status_code == 401
        assert httpx.post(ask, json={}, auth=("slackwater", "guess")).status_code == 401
        assert httpx.post(ask, json={}, auth=own).json() == []
        evil = {"origin": "http://evil.example"}
        assert httpx.post(ask, json={}, auth=own, headers=evil).status_code == 403
        assert (
            httpx.post(ask, content=b"{}", headers=evil | {"content-type": "text/plain"}).status_code == 403
        )
        assert httpx.post(ask, json={}, auth=own, headers={"host": "evil.example"}).status_code == 421
        preflight = httpx.options(ask, headers=evil | {"access-control-request-method": "POST"})
        assert preflight.status_code == 403
        page = httpx.get(url.removesuffix("/api"), follow_redirects=True, headers={"accept": "text/html"})
        assert page.status_code == 200
        assert httpx.get(f"{url.removesuffix('/api')}/ui-settings").json()["auth"] == "BASIC"
        home = Path(os.environ["PREFECT_HOME"])
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "server.log").stat().st_mode) == 0o600
        assert stat.S_IMODE((home / "prefect.db").stat().st_mode) == 0o600
        assert own[1] not in (tmp_path / "server.log").read_text()
