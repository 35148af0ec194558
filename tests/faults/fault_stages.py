"""The work that is killed, each from a prepared folder: every stage of a turn, a turn, a fetch of a live feed, a backfill."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from fault_samples import OPTIONS, write_samples
from loopback import Ec2, price_history
from past_jobs import past_jobs

from slackwater.flows.backfill import run as backfill_run
from slackwater.flows.backfill.run import Backfill, backfill, plan_backfill, slots_between
from slackwater.flows.config import Feed, Settings
from slackwater.flows.feeds import fetch as feeds
from slackwater.flows.feeds.fetch import fetch_feed
from slackwater.flows.following import step_of
from slackwater.flows.ledger.jobs import save_jobs
from slackwater.flows.turn import stages
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.stages import TurnProgress, whole_turn
from slackwater.flows.turn.work import require_markets
from slackwater.optimization.job.request import parse_request
from slackwater.warehouse.observations import ingest as read_files
from slackwater.warehouse.sources.live.transport import Retry, Transport
from slackwater.warehouse.store.connection import open_store

AT = pd.Timestamp("2026-03-10T06:00Z")
SLOT = pd.Timedelta("30min")
HOUR = pd.Timedelta("1h")
DB = Path("w.duckdb")
POOL = """
[[family]]
name = "OD-only"
[[family]]
name = "UP"
[[family]]
name = "AHANP"
sigma = [0.5, 0.9]
[[family]]
name = "AHAP"
omega = 3
commitment = 2
sigma = 0.9
"""
SETTINGS = Settings(
    models=("last_value", "markov"),
    planner="markov",
    measured_origins=4,
    horizon=3,
    planning_horizon=6,
    max_markets=2,
    simulated_days=4,
    history_days=3,
    risk_paths=10,
    pool=Path("pool.toml"),
)
#: Slots of a backfill, and slots per chunk.
BACKFILLED, CHUNK = 6, 2


def turn_of(store, at: pd.Timestamp = AT) -> Turn:
    return Turn(store=store, at=at, settings=SETTINGS, run_id=run_id_of(at))


def known_to(turn: Turn) -> TurnProgress:
    known = stages.know(turn, TurnProgress())
    require_markets(known.work)
    return TurnProgress(known=known)


def files_and_market() -> None:
    """Import files of every source, then a simulated market and jobs to learn from, in a single opening of the warehouse."""
    with open_store(DB) as store:
        for name, options in OPTIONS.items():
            read_files(store, name, Path("files") / name, **options, imported_at=AT)
        stages.ingest(turn_of(store), TurnProgress())
        save_jobs(store, past_jobs(2, before=AT), origin="user", at=AT, step=SLOT)


def simulated() -> None:
    with open_store(DB) as store:
        stages.ingest(turn_of(store), TurnProgress())


def forecast() -> None:
    with open_store(DB) as store:
        turn = turn_of(store)
        stages.forecast(turn, known_to(turn))


def score() -> None:
    stages.SCORED_TOGETHER = 1  # a transaction for each of the two jobs
    with open_store(DB) as store:
        turn = turn_of(store)
        stages.score(turn, known_to(turn))


def allocate() -> None:
    with open_store(DB) as store:
        turn = turn_of(store)
        stages.decide(turn, known_to(turn))


def turn(at: pd.Timestamp = AT) -> None:
    with open_store(DB) as store:
        whole_turn(turn_of(store, at), data=None, requests=[], report=Path("report.html"))


def may_move() -> None:
    """Add two multi-market jobs on the simulated market's zones: one ends with its first slot, the other two hours later."""
    terms = {
        "n_max": 2, "markets": ["simulated/*/*/h100"], "workload": {"amount": 1.5, "unit": "gpu_hours"},
        "throughput": {"form": "linear"}, "checkpoint": {"resumable": True, "overhead_minutes": 3},
    }  # fmt: skip
    asked = [
        parse_request({"name": name, "deadline_in": length, **terms}, name).with_place(
            at=AT, market=None, source=None
        )
        for name, length in (("brief", "30min"), ("longer", "2h"))
    ]
    with open_store(DB) as store:
        save_jobs(store, asked, origin="user", at=AT, step=SLOT)


def next_turn() -> None:
    turn(AT + SLOT)


def slot_range():
    return slots_between(AT + SLOT, AT + BACKFILLED * SLOT, slot=step_of(SETTINGS))


def filled() -> list[dict[str, object]]:
    """Make the slots; return the outcome of each with its plan."""
    backfill_run.CHUNK = CHUNK
    outcomes = backfill(Backfill(db=DB, slot_range=slot_range(), settings=SETTINGS, workers=1))
    return [
        {"slot": str(one.plan.at), "planned": list(one.plan.todo), "became": dict(one.became)}
        for one in outcomes
    ]


def preview() -> list[dict[str, object]]:
    with open_store(DB) as store:
        return [
            {"slot": str(plan.at), "planned": list(plan.todo)} for plan in plan_backfill(store, slot_range())
        ]


def ec2(hours: int = 8) -> Ec2:
    """Return AWS responses in their documented form: two zones, a price an hour, several pages."""
    return Ec2({"us-east-1": price_history("us-east-1", hours, start=AT - hours * HOUR)}, page=5)


def feed_of(url: str) -> Feed:
    given = {"endpoint_url": url, "regions": ["us-east-1"], "page": 5, "days": 2}
    return Feed(name="spot", source="aws-spot", every_minutes=60, options=given)


def credentials() -> None:
    """Set credentials for boto3's chain, and remove proxies for the loopback interface."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "AWS_PROFILE"):
        os.environ.pop(name, None)
        os.environ.pop(name.lower(), None)
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE123456789",
        "AWS_SECRET_ACCESS_KEY": "aws-secret-abcdefghijklmnop",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nowhere",
        "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
    }


def fetch(
    url: str, *, at: pd.Timestamp = AT, seed: int = 1, tries: int = 5, seconds: float = 5.0
) -> dict[str, object]:
    feeds.GATHER_SECONDS = 0.0  # the warehouse is open to other writers between any two pages
    transport = Transport(seed=seed, retry=Retry(tries=tries), seconds=seconds, sleep=lambda _seconds: None)
    with open_store(DB) as store:
        fetched = fetch_feed(store, feed_of(url), at=at, transport=transport)
    return {"status": fetched.status, "requests": fetched.requests, **fetched.counts()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage to kill: preparation of its folder, and its work. ``whole``: readers see nothing of it before its end."""

    name: str
    before: tuple[Callable[[], object], ...]
    work: Callable[[], object]
    #: Columns that count attempts; they differ where a part was repeated.
    without: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    whole: bool = True
    files: bool = field(default=False)

    def prepare(self, folder: Path) -> None:
        """Prepare the start of the work; runs inside a child, in the folder."""
        (folder / "pool.toml").write_text(POOL)
        if self.files:
            write_samples(folder / "files")
        open_store(folder / DB).close()
        for step in self.before:
            step()


STAGES = (
    Stage(name="ingest", before=(), work=files_and_market, files=True),
    Stage(name="forecast", before=(simulated,), work=forecast),
    Stage(name="score", before=(simulated, forecast), work=score),
    Stage(name="allocate", before=(simulated, forecast, score), work=allocate),
    # Of the multi-market jobs, the killed turn scores one job and decides the other, which the backfill scores.
    Stage(name="turn", before=(turn, may_move), work=next_turn),
    Stage(name="backfill", before=(turn, may_move), work=filled, whole=False),
)


def feed_stage(url: str) -> Stage:
    """Return the stage that fetches a live feed from a server in another process."""
    return Stage(
        name="feed",
        before=(),
        work=lambda: fetch(url),
        without=("batch", "sid", "mid", "fetches.requests", "fetches.reason"),
        tables=("markets", "price", "availability", "rejected", "assumptions", "fetches"),
    )


def copied(base: Path, folder: Path) -> Path:
    """Copy the base folder, times included: snapshots are identified by them."""
    shutil.copytree(base, folder)
    return folder
