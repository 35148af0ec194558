"""Serve the deployments from a single process without a work pool, with a child process as server if none is configured."""

from __future__ import annotations

import asyncio
import atexit
import os
import secrets
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import httpx
import pandas as pd
import yaml  # type: ignore[import-untyped]

from slackwater.flows.command import Warehouse, say
from slackwater.flows.config import Settings
from slackwater.flows.engine.run import prepare_engine
from slackwater.flows.paths import allow_paths
from slackwater.flows.schemas.command import AUTOMATIONS_FILE, DEPLOYMENTS_FILE
from slackwater.warehouse.errors import SettingsError
from slackwater.warehouse.times import steady_seconds

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment
    from prefect.schedules import Schedule
    from prefect.utilities.callables import ParameterSchema


#: Origin of interval schedules; slots count from it too, so that every scheduled time is the start of a slot.
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A deployment of ``prefect.yaml``: flow, schedule and parameters; its runs never overlap.

    ``flow``: import path. ``cron``: in UTC; without it the deployment is not scheduled. Paths in
    ``parameters`` are relative to the folder in which the deployments were created, and must stay
    in it (`slackwater.flows.paths`). ``concurrency``: the limit of one run, the treatment of a run that is due
    while another is running, and the seconds that Prefect waits for the process of a run before it gives its
    place to another. The flow defines retries and time limits (`slackwater.flows.engine.flows`).
    """

    name: str
    flow: str
    description: str
    cron: str | None
    parameters: Mapping[str, Any]
    tags: tuple[str, ...]
    queue: str
    concurrency: Mapping[str, Any]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Deployment:
        """Return the deployment of an entry of ``prefect.yaml``."""
        return cls(
            name=entry["name"],
            flow=entry["entrypoint"],
            description=entry["description"],
            cron=next((schedule["cron"] for schedule in entry["schedules"]), None),
            parameters=entry["parameters"],
            tags=tuple(entry["tags"]),
            queue=entry["work_pool"]["work_queue_name"],
            concurrency=entry["concurrency_limit"],
        )


def _read_yaml(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


#: Every deployment, the scheduled ones first.
DEPLOYMENTS = tuple(map(Deployment.of, _read_yaml(DEPLOYMENTS_FILE)["deployments"]))


def automations() -> list[dict[str, Any]]:
    """Return the automations of ``automations.yaml``: reactions of the server to runs whose process has died."""
    found: list[dict[str, Any]] = _read_yaml(AUTOMATIONS_FILE)["automations"]
    return found


def flow_name(deployment: Deployment) -> str:
    """Return the name of a deployment's flow in Prefect: the function name with dashes."""
    return deployment.flow.rsplit(".", 1)[1].replace("_", "-")


def full_name(deployment: Deployment) -> str:
    """Return ``flow/deployment``, the name in Prefect's commands."""
    return f"{flow_name(deployment)}/{deployment.name}"


def chosen_deployments(only: Sequence[str]) -> tuple[Deployment, ...]:
    """Return the deployments of these flows, or all; raises `SettingsError` naming the known flows."""
    known = {flow_name(deployment): deployment for deployment in DEPLOYMENTS}
    for name in only:
        if name not in known:
            raise SettingsError(f"--only {name!r}", expected=f"one of {', '.join(known)}")
    return tuple(deployment for name, deployment in known.items() if not only or name in only)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Settings of a serving process: files for the flows, and the time between turns (None: as scheduled)."""

    db: Path
    data: Path | None = None
    settings: Path | None = None
    every: timedelta | None = None

    def parameters(self, deployment: Deployment, accepted: Sequence[str]) -> dict[str, Any]:
        """Return the deployment's parameters, with those of these files that its flow accepts."""
        own = {"db": self.db, "data": self.data, "settings": self.settings}
        given: dict[str, Any] = {
            key: str(path) for key, path in own.items() if path is not None and key in accepted
        }
        if every := self._interval(deployment):
            given["every_minutes"] = every // timedelta(minutes=1)
        return {**deployment.parameters, **given}

    def schedule(self, deployment: Deployment) -> Schedule | None:
        """Return the schedule: turns every ``every`` counted from the epoch if given, else the cron."""
        from prefect.schedules import Cron, Interval

        if deployment.cron is None:
            return None
        if every := self._interval(deployment):
            return Interval(every, anchor_date=EPOCH, timezone="UTC")
        return Cron(deployment.cron, timezone="UTC")

    def schedule_in_words(self, deployment: Deployment) -> str:
        """Describe the schedule in words."""
        if deployment.cron is None:
            return "when it is asked for"
        every = self._interval(deployment)
        return f"every {every}" if every else f"by cron {deployment.cron!r} UTC"

    def _interval(self, deployment: Deployment) -> timedelta | None:
        return self.every if deployment.flow == "slackwater.flows.engine.flows.pipeline" else None


def runner_deployment(deployment: Deployment, served: ServeSettings) -> RunnerDeployment:
    """Return a deployment as Prefect serves it; its flow is imported by module path, independent of the folder."""
    from prefect.client.schemas.objects import ConcurrencyLimitConfig
    from prefect.flows import Flow
    from prefect.types.entrypoint import EntrypointType

    module, _, function = deployment.flow.rpartition(".")
    flow: Flow[..., Any] = getattr(import_module(module), function)
    result = flow.to_deployment(
        name=deployment.name,
        schedule=served.schedule(deployment),
        parameters=served.parameters(deployment, list(flow.parameters.properties)),
        description=deployment.description,
        tags=list(deployment.tags),
        concurrency_limit=ConcurrencyLimitConfig.model_validate(deployment.concurrency),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )
    own = cast("RunnerDeployment", result)
    own._parameter_openapi_schema = closed_schema(own._parameter_openapi_schema)
    return own


def closed_schema(schema: ParameterSchema) -> ParameterSchema:
    """Return a schema of parameters by which Prefect refuses to create a run with an unknown parameter."""
    from prefect.utilities.callables import ParameterSchema

    class ClosedSchema(ParameterSchema):
        additionalProperties: bool = False

    # Given, not left to its default: Prefect sends only the values that were set.
    return ClosedSchema(**schema.model_dump(), additionalProperties=False)


LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 4200  # Prefect's default port
STOPPING = (signal.SIGTERM, signal.SIGINT)  # Signals that request a stop
START_SECONDS, STOP_SECONDS = 180.0, 20.0  # Time limits in seconds for the start and the stop of a server


def free_port() -> int:
    """Return a free port of the loopback address."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        return int(listener.getsockname()[1])


def require_free(port: int) -> None:
    """Raise `SettingsError` if a port of the loopback address is in use."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((LOOPBACK, port))
        except OSError as error:
            raise SettingsError(
                f"--port {port}: {error.strerror}",
                expected="a free port",
                remedy="name another one, 0 for any, or set PREFECT_API_URL if a Prefect server runs there",
            ) from error


def require_scheduler() -> None:
    """Raise `SettingsError` if the server would start but never create a scheduled run.

    Prefect 3.8.8 allows SQLAlchemy 2.1, but its scheduler cannot insert runs through it ("Can't
    evaluate bulk DML statement"): it logs this error once a minute, and nothing ever runs.
    """
    found = version("sqlalchemy")
    if tuple(int(part) for part in found.split(".")[:2]) >= (2, 1) and version("prefect").startswith("3.8."):
        raise SettingsError(
            f"SQLAlchemy {found}, through which Prefect {version('prefect')} makes no scheduled run",
            expected="SQLAlchemy 2.0",
            remedy='pip install "sqlalchemy<2.1"',
        )


#: The file in Prefect's home with the password of our server, and the variables that pass it to
#: server and clients.
PASSWORD_FILE = "auth"
SERVER_PASSWORD, CLIENT_PASSWORD = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"


@contextmanager
def running_server(
    log: Path,
    *,
    port: int = 0,
    names: Sequence[str] = (),
    embedded: bool = False,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[str]:
    """Start a Prefect server on loopback and yield the address of its API; the server ends with the block or this process.

    Settings are read from the environment (`slackwater.flows.engine.run.prepare_engine`); output goes to
    ``log``. Port 0 selects any free port. The server requires a password (`server_password`), accepts only
    the loopback host names and ``names``, rejects pages of other origins, and its files are private to this
    user. While it runs, this process and its children have its address and password in their environment, for
    Prefect's clients. An ``embedded`` server has neither UI nor scheduler. ``meanwhile`` runs while it
    starts. Raises `SettingsError` if the port is in use or the server does not start.
    """
    require_scheduler()
    if port:
        require_free(port)
    port = port or free_port()
    address = f"http://{LOOPBACK}:{port}"
    home = prefect_home()
    try:
        _make_private(home, log)
        password = server_password(home)
    except OSError as error:
        raise SettingsError(
            f"folder {home} of the Prefect server: {error.strerror}",
            expected="a folder that may be written",
            remedy="make room, or set PREFECT_HOME to another folder",
        ) from error
    words = [sys.executable, "-m", f"{__package__}.server", "--host", LOOPBACK, "--port", str(port)]
    words += ["--parent", str(os.getpid())]
    words += [word for name in names for word in ("--allow-host", name)]
    environment = {
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": address,
        "PREFECT_UI_API_URL": "/api",  # relative, as the browser may use any of the host names
        **os.environ,
        SERVER_PASSWORD: password,
        "PREFECT_SERVER_API_PORT": str(port),
        **(_EMBEDDED if embedded else {}),
    }
    environment.pop("PREFECT_API_URL", None)  # a server must not use another server
    process: subprocess.Popen[bytes] | None = None
    with (
        log.open("ab") as output,
        _environment({"PREFECT_API_URL": f"{address}/api", CLIENT_PASSWORD: password}),
    ):
        try:
            with _signals_wait():
                process = subprocess.Popen(
                    words, stdout=output, stderr=subprocess.STDOUT, env=environment, umask=0o077,
                    # Ctrl-C at the terminal must reach only this process, which stops the server in order.
                    start_new_session=not embedded,
                )  # fmt: skip
            meanwhile()
            _wait_until_healthy(process, f"{address}/api", log)
            yield f"{address}/api"
        finally:
            if process is not None:
                with _signals_wait():
                    _stop(process)


#: Prefect's settings for a server of a single process, but warnings go to its log even if the
#: command is quiet.
_EMBEDDED = {
    "PREFECT_SERVER_UI_ENABLED": "false",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING",
}


def prefect_home() -> Path:
    """Return the folder of Prefect's state (`slackwater.flows.engine.run.prepare_engine`)."""
    return Path(os.environ["PREFECT_HOME"]).expanduser()


def server_password(home: Path) -> str:
    """Return the password of our server: `SERVER_PASSWORD` of the environment, else the text of `PASSWORD_FILE`.

    A missing file is created. A file that other users can read, or that is empty, is replaced: its
    content is no secret.
    """
    if given := os.environ.get(SERVER_PASSWORD):
        return given
    file = home / PASSWORD_FILE
    with suppress(FileNotFoundError):
        found = file.lstat()
        private = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
        if private and (text := file.read_text(encoding="utf-8").strip()):
            return text
        file.unlink()
    handle, part = tempfile.mkstemp(dir=home, prefix=f".{PASSWORD_FILE}.")  # of mode 0600
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(f"slackwater:{secrets.token_urlsafe(32)}\n")
    try:
        os.link(part, file)  # if two servers start at the same time, both use the first password
        os.unlink(part)
    except FileExistsError:
        os.unlink(part)
    except OSError:  # a file system without links
        os.replace(part, file)
    return file.read_text(encoding="utf-8").strip()


def _password_words() -> str:
    if os.environ.get(SERVER_PASSWORD):
        return f" (password: the value of {SERVER_PASSWORD})"
    return f" (password in {prefect_home() / PASSWORD_FILE})"


def _make_private(home: Path, log: Path) -> None:
    """Restrict Prefect's home and the server's log to this user; in an existing home, the database and the log."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    log.touch(mode=0o600)
    for file in (log, *home.glob("prefect.db*")):
        with suppress(PermissionError):  # owned by another user
            file.chmod(0o600)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Delay stop signals to the end of the block: no process is left behind by an interrupted start or stop."""
    if threading.current_thread() is not threading.main_thread():  # signals only interrupt the main thread
        yield
        return
    signals: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: signals.append(number)) for number in STOPPING
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for got in signals:
            signal.raise_signal(got)


def _wait_until_healthy(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = steady_seconds() + START_SECONDS
    while process.poll() is None and steady_seconds() < deadline:
        try:
            if httpx.get(f"{url}/health", timeout=5).is_success:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    ended = f"ended with code {process.returncode}" if process.poll() is not None else "does not answer"
    raise SettingsError(f"the Prefect server {ended}", remedy=f"its own words are in {log}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


SCHEDULED_STEP = pd.Timedelta(minutes=30)  # The slot length of the schedule in ``prefect.yaml``


def serve_command(
    warehouse: Warehouse,
    *,
    data: Path | None,
    only: Sequence[str],
    every: str | None,
    port: int,
    names: Sequence[str] = (),
) -> None:
    """Register the deployments and run them when due, until SIGTERM or SIGINT (``slackwater serve``)."""
    chosen = chosen_deployments(only)
    db, settings = warehouse.db, warehouse.settings
    served = ServeSettings(db=db, data=data, settings=settings, every=turn_interval(every, warehouse.config))
    home = db.resolve().parent
    if not home.is_dir():
        raise SettingsError(f"--db {db}: no folder {home}", remedy="make it, or name another file")
    prepare_engine(home)
    own = not os.environ.get("PREFECT_API_URL")
    allow_paths([path for path in (db, data, settings) if path is not None])
    with _stopped_by_signal(), engine_server(port, names) as url:
        say(f"Prefect at {url.removesuffix('/api')}{_password_words() if own else ''}")
        for deployment in chosen:
            say(f"serve {full_name(deployment)}, {served.schedule_in_words(deployment)}")
        asyncio.run(_serve([runner_deployment(deployment, served) for deployment in chosen]))
    say("stopped")


def turn_interval(every: str | None, settings: Settings) -> timedelta | None:
    """Return the time between turns, None if that of the deployments; raises `SettingsError` unless whole slots."""
    step = pd.Timedelta(minutes=settings.step_minutes)
    expected = (
        f"a whole number of slots of {settings.step_minutes} minutes, such as {settings.step_minutes}min"
    )
    try:
        wanted = step if every is None else pd.Timedelta(every)
    except ValueError as error:
        raise SettingsError(f"--every {every!r}", expected=expected) from error
    if pd.isna(wanted) or wanted <= pd.Timedelta(0) or wanted % step:
        raise SettingsError(f"--every {every!r}", expected=expected)
    return None if wanted == SCHEDULED_STEP else wanted.to_pytimedelta()


@contextmanager
def engine_server(port: int, names: Sequence[str] = ()) -> Iterator[str]:
    """Provide the API address of the server in PREFECT_API_URL, else of a new server, which child processes find too."""
    named = os.environ.get("PREFECT_API_URL")
    if named:
        yield named
        return
    say("start a Prefect server")
    with running_server(prefect_home() / "server.log", port=port, names=names) as url:
        yield url


def start_embedded_server() -> None:
    """Start a server for this process, unless PREFECT_API_URL is set, that ends with the interpreter and its last log lines."""
    if os.environ.get("PREFECT_API_URL"):
        return
    running = ExitStack()
    atexit.register(running.close)
    log = prefect_home() / "embedded.log"
    flows = f"{__package__}.flows"
    running.enter_context(running_server(log, embedded=True, meanwhile=lambda: import_module(flows)))


class _Stop(BaseException):
    """Signal received before the deployments were served."""


@contextmanager
def _stopped_by_signal() -> Iterator[None]:
    """Leave the block in order, as an exception does, if a stop signal arrives."""

    def stop(_number: int, _frame: object) -> None:
        raise _Stop

    before = {number: signal.signal(number, stop) for number in STOPPING}
    try:
        yield
    except _Stop:
        pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def keep_automation(automation: dict[str, Any]) -> None:
    """Register an automation with the server, replacing an automation of the same name.

    An unchanged automation is not written again: a new automation has no record of earlier events,
    so runs that died with the previous server process would never be ended.
    """
    from prefect.client.orchestration import get_client
    from prefect.events.schemas.automations import AutomationCore

    wanted = AutomationCore.model_validate(automation)
    async with get_client() as client:
        try:
            registered = await client.read_automations_by_name(wanted.name)
            if not registered:
                await client.create_automation(wanted)
            elif registered[0].model_dump(include=set(AutomationCore.model_fields)) != wanted.model_dump():
                await client.update_automation(registered[0].id, wanted)
        except httpx.HTTPError as error:  # serving continues without it
            say(f"the server does not take the automation {wanted.name}: {error}")


async def _serve(deployments: Sequence[RunnerDeployment]) -> None:
    """Run the deployments when due until a signal, then stop the flows; schedules stay active, so that late runs make up."""
    from prefect.runner import Runner

    for automation in automations():
        await keep_automation(automation)
    runner = Runner(name="slackwater", pause_on_shutdown=False, limit=None)
    for deployment in deployments:
        await runner.aadd_deployment(deployment)
    stopped = asyncio.Event()
    going = asyncio.create_task(runner.start())
    while not runner.started and not going.done():
        await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    # After the runner has set its handlers, which leave coroutines that nobody awaits.
    for number in STOPPING:
        loop.add_signal_handler(number, stopped.set)
    waiting = asyncio.create_task(stopped.wait())
    say("ready")
    await asyncio.wait({going, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if stopped.is_set():
        say("stop")
        await runner.astop()
    await going
