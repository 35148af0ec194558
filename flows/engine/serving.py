"""Serve the deployments from one process: no work pool, no worker; with a Prefect server of its own if none is named."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from flows.command.progress import say
from flows.config import Settings, read_settings
from flows.engine.deployments import Served, chosen_deployments, full_name, runner_deployment
from flows.engine.prepare import prepare_engine
from flows.engine.server import running_server
from warehouse.errors import SettingsError

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

#: The slot length for which the schedule in ``prefect.yaml`` is made.
SCHEDULED_STEP = pd.Timedelta(minutes=30)
STOPPING = (signal.SIGTERM, signal.SIGINT)


def serve_command(
    *,
    db: Path,
    data: Path | None,
    settings: Path | None,
    only: Sequence[str],
    every: str | None,
    port: int,
) -> None:
    """``slackwater serve``: make the deployments known and run them as they come due, until SIGTERM or SIGINT."""
    chosen = chosen_deployments(only)
    served = Served(db=db, data=data, settings=settings, every=turn_interval(every, read_settings(settings)))
    home = db.resolve().parent
    if not home.is_dir():
        raise SettingsError(f"--db {db}: no folder {home}", remedy="make it, or name another file")
    prepare_engine(home)
    with _stopped_by_signal(), engine_server(port) as url:
        say(f"Prefect at {url}")
        for one in chosen:
            say(f"serve {full_name(one)}, {served.said(one)}")
        asyncio.run(_serve([runner_deployment(one, served) for one in chosen]))
    say("stopped")


def turn_interval(every: str | None, settings: Settings) -> timedelta | None:
    """The time between turns: ``--every``, else the slot length; None where the deployments' own schedule is just that.

    Raises `SettingsError` on what is no whole number of slots: every turn must be at the start of one.
    """
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
def engine_server(port: int) -> Iterator[str]:
    """The server that PREFECT_API_URL names, else one of our own, whose address the processes we start will find."""
    named = os.environ.get("PREFECT_API_URL")
    if named:
        yield named
        return
    home = Path(os.environ["PREFECT_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    say("start a Prefect server")
    with running_server(home / "server.log", port=port) as url:
        os.environ["PREFECT_API_URL"] = url
        try:
            yield url
        finally:
            del os.environ["PREFECT_API_URL"]


class _Stop(BaseException):
    """A signal asked to stop before the deployments were served."""


@contextmanager
def _stopped_by_signal() -> Iterator[None]:
    """While the server starts and stops: a signal leaves the block in order, as an exception does."""

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


async def _serve(made: Sequence[RunnerDeployment]) -> None:
    """Run what comes due until a signal; then end the runs that go on, and leave the schedules as they are.

    Schedules are not paused: a restart must not lose the slots between, whose late runs do the work of their own slot.
    """
    from prefect.runner import Runner

    runner = Runner(name="slackwater", pause_on_shutdown=False, limit=None)
    for deployment in made:
        await runner.aadd_deployment(deployment)
    stopped = asyncio.Event()
    going = asyncio.create_task(runner.start())
    while not runner.started and not going.done():
        await asyncio.sleep(0.1)
    loop = asyncio.get_running_loop()
    for (
        number
    ) in STOPPING:  # after the runner has set its own, which leave coroutines behind that nobody awaits
        loop.add_signal_handler(number, stopped.set)
    waiting = asyncio.create_task(stopped.wait())
    say("ready")
    await asyncio.wait({going, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if stopped.is_set():
        say("stop")
        await runner.astop()
    await going
