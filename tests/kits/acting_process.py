"""`act`, turns and reports to the server as processes, killed by SIGKILL after a share of their usual CPU time.

They are forked from a process that has imported the program and opened no warehouse.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import httpx
import numpy as np
import pandas as pd
from acting_week import simulated
from command_kit import call

from slackwater.flows.acting.rehearsal import rehearse_turn
from slackwater.flows.config import Settings
from slackwater.flows.ui.app import make_app
from slackwater.flows.ui.reading import Snapshots
from slackwater.flows.ui.reports import ReportReceiver
from slackwater.optimization.policies.pool import policy_named

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "acting_process", "acting_kernels"])
TOKEN = "0123456789abcdef"


def act(db: Path, at: pd.Timestamp, every: str) -> None:
    """Make one pass of the command `act`, with its own ledger, as of a time."""
    words = ("act", "--driver", "simulated", "--db", db, "--at", at.isoformat(), "--every", every)
    done = call(*words, "--once", "--json")
    if done.code:
        raise SystemExit(done.err)


def turn(db: Path, settings: Settings, at: pd.Timestamp, policy: str | None) -> None:
    """Decide the slots of a time."""
    rehearse_turn(
        db, settings, simulated(db, settings)[1], at, policy=None if policy is None else policy_named(policy)
    )


def door_app(db: Path, settings: Settings, at: pd.Timestamp):
    """Return the web app with its receiver for reports."""
    receiver = ReportReceiver.of(db, settings, clock=lambda: at, bound="127.0.0.1", environment={"T": TOKEN})
    return make_app(Snapshots(db, settings, lambda: at), receiver=receiver)


async def post(app, name: str, given: dict[str, object]) -> int:
    """Post a report to the web app; return the status."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = await client.post(f"/api/jobs/{name}/report", json=given, headers=headers)
    return answer.status_code


def report(db: Path, settings: Settings, at: pd.Timestamp, name: str, share: float) -> None:
    """Start the web app, and post the progress of a job to it."""
    status = asyncio.run(
        post(door_app(db, settings, at), name, {"progress_share": share, "at": at.isoformat()})
    )
    if status not in (200, 422):
        raise SystemExit(f"status {status}")


def cpu_seconds(pid: int) -> float | None:
    """Return the CPU time of a process, None once it has ended."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    except (OSError, IndexError, ProcessLookupError):
        return None


@dataclass
class Mortals:
    """Processes that are killed with a chance, at a moment that is uniform over the CPU time of the longest run so far."""

    rng: np.random.Generator
    chance: float
    kills: dict[str, int] = field(default_factory=lambda: {"actor": 0, "turn": 0, "server": 0})
    runs: int = 0
    longest: dict[str, float] = field(default_factory=dict)
    cpu: float = 0.0

    def run(self, who: str, work, *arguments) -> bool:
        """Run a process to its end, or kill it; return whether it came to its end. Raises its error."""
        process = FORKS.Process(target=work, args=arguments, daemon=True)
        with patch.dict(
            os.environ, PYTHONPATH=os.pathsep.join(sys.path)
        ):  # where the server finds this module
            process.start()
        self.runs += 1
        usual = self.longest.get(who)
        doomed = usual is not None and self.rng.random() < self.chance
        limit = self.rng.uniform(0.0, usual) if doomed else float("inf")
        used = 0.0
        while process.is_alive():
            used = max(used, cpu_seconds(process.pid) or 0.0)
            if used >= limit:
                process.kill()
                break
            time.sleep(0.005)
        process.join()
        self.cpu += used
        if process.exitcode == -9:
            self.kills[who] += 1
            return False
        assert process.exitcode == 0, (who, arguments, process.exitcode)
        self.longest[who] = max(used, self.longest.get(who, 0.0))
        return True
