"""A week of acting with the product's own decisions on a real warehouse: kills of the actor, of turns and of the server."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import httpx
import numpy as np
import pandas as pd
import pytest
from acting_kit import Killed, Kills, MortalDriver, MortalLedger
from advice_kit import SOURCE, STEP
from make import make_request
from tidy_folder import START, write_tidy

from slackwater.flows.acting.account import paid_usd
from slackwater.flows.acting.contract import count_by_kind
from slackwater.flows.acting.ledger import LaunchLedger, ledger_file
from slackwater.flows.acting.loop import Acting
from slackwater.flows.acting.rehearsal import rehearse_turn, simulated_cloud
from slackwater.flows.acting.targets import Limits
from slackwater.flows.acting.warehouse import ActedWarehouse
from slackwater.flows.config import Settings
from slackwater.flows.ledger.decisions import decisions_of, revisions_by_job
from slackwater.flows.ledger.jobs import find_job, save_jobs
from slackwater.flows.ledger.reports import reports_of
from slackwater.flows.ui.app import make_app
from slackwater.flows.ui.reading import Snapshots
from slackwater.flows.ui.reports import ReportDoor
from slackwater.optimization.policies.pool import policy_named
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_store

SETTINGS = Settings(history_days=3, risk_paths=10, seed=5, report_token_env="T")
TOKEN = "0123456789abcdef"
BEGIN = START.ceil("30min") + pd.Timedelta(days=3)
EVERY = timedelta(minutes=10)


class MortalCloud:
    """A simulated cloud whose asker, a turn, may be killed before or after its answer."""

    def __init__(self, cloud, kills):
        self._cloud, self._kills = cloud, kills

    def run(self, job, now):
        self._kills.moment()
        found = self._cloud.run(job, now)
        self._kills.moment()
        return found


class Week:
    """Jobs in three markets, the processes that serve them, and the kills of each."""

    def __init__(self, folder, *, jobs, hours, chance, seed, policy=None):
        self.rng, self.hours = np.random.default_rng(seed), hours
        self.policy = None if policy is None else policy_named(policy)
        self.db = folder / "w.duckdb"
        tidy = write_tidy(folder / "data", days=4 + hours / 24)
        with open_store(self.db) as store:
            ingest(store, "tabular", tidy, imported_at=BEGIN, progress=lambda _: None)
            for k in range(jobs):
                at = BEGIN + STEP * int(self.rng.integers(0, max(1, 2 * (hours - 8))))
                placed = make_request(
                    f"job-{k}",
                    at=at,
                    market=f"lab/r1/z{1 + k % 3}/a3-highgpu-1g",
                    source=SOURCE,
                    n_max=int(self.rng.integers(2, 7)),
                    deadline_in=f"{int(self.rng.integers(4, min(8, hours)))}h",
                    workload={"amount": float(self.rng.uniform(3, 7)), "unit": "instance_hours"},
                    on_demand_wait_minutes=20,
                )
                save_jobs(store, [placed], origin="user", at=at, step=STEP)
        self.names = [f"job-{k}" for k in range(jobs)]
        self.world = ActedWarehouse(self.db, SETTINGS)
        self.cloud = simulated_cloud(self.db, self.world)
        self.kills = {
            who: Kills(np.random.default_rng(seed + n), chance)
            for n, who in enumerate(("actor", "turn", "server"))
        }
        self.acting = self.app = None
        self.restarts, self.seen = Counter(), Counter()

    def act(self, at):
        """Make a pass; a killed actor starts again within seconds."""
        while True:
            try:
                if self.acting is None:
                    ledger = MortalLedger(ledger_file(self.db))
                    ledger.kills = self.kills["actor"]
                    driver = MortalDriver(self.cloud, ledger.kills)
                    self.acting = Acting(
                        world=self.world, ledger=ledger, driver_of=lambda _, driver=driver: driver,
                        limits=Limits(idle_slots=3, every=EVERY),
                    )  # fmt: skip
                self.acting.run_pass(at.to_pydatetime())
                return at
            except Killed:
                self.acting.ledger.close()
                self.acting, at = None, at + pd.Timedelta(seconds=int(self.rng.integers(1, 20)))

    def turn(self, at):
        """Decide a slot; a killed turn is left out half of the time, else it is made again."""
        while True:
            try:
                rehearse_turn(
                    self.db, SETTINGS, MortalCloud(self.cloud, self.kills["turn"]), at, policy=self.policy
                )
                return
            except Killed:
                if self.rng.random() < 0.5:
                    self.seen["turns left out"] += 1
                    return

    def report(self, name, at):
        """Post the progress of a job to the server, which may be killed before or after it stores it."""
        run = self.cloud.run(name, at.to_pydatetime())
        share = run.saved / run.terms.workload
        for _ in range(3):
            try:
                self.kills["server"].moment()
                if self.app is None:
                    door = ReportDoor.of(
                        self.db, SETTINGS, clock=lambda: at, bound="127.0.0.1", environment={"T": TOKEN}
                    )
                    self.app = make_app(Snapshots(self.db, SETTINGS, lambda: at), door=door)
                answer = asyncio.run(self._post(name, {"progress_share": share, "at": at.isoformat()}))
                assert answer.status_code in (200, 422), answer.text
                self.seen[f"reports {answer.status_code}"] += 1
                self.kills["server"].moment()
                return
            except Killed:
                self.app = None

    async def _post(self, name, given):
        transport = httpx.ASGITransport(app=self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            headers = {"authorization": f"Bearer {TOKEN}"}
            return await client.post(f"/api/jobs/{name}/report", json=given, headers=headers)

    def run(self):
        end = BEGIN + pd.Timedelta(hours=self.hours)
        for at in pd.date_range(BEGIN, end, freq=EVERY):
            if at == at.floor(STEP):
                self.turn(at)
            now = self.act(at)
            self.check_no_double_launch(now)
            held = [name for name, own in self.acting.ledger.jobs.items() if own.held]
            if held and self.rng.random() < 0.2:
                self.report(str(self.rng.choice(held)), now + pd.Timedelta(minutes=4))
        self.acting.ledger.close()
        return end

    def check_no_double_launch(self, now):
        for name, own in self.acting.ledger.jobs.items():
            if own.last is not None:
                up = count_by_kind(self.cloud.listed(name, [], now.to_pydatetime()))
                assert up["spot"] <= own.last.order.spot
                assert up["on_demand"] <= own.last.order.on_demand

    def check_the_end(self, end):
        with LaunchLedger(ledger_file(self.db), read_only=True) as ledger, open_store(self.db) as store:
            for name in self.names:
                job, own = find_job(store, name), ledger.job(name)
                run = self.cloud.run(name, end.to_pydatetime())
                assert run.finish is not None, name
                assert run.finish <= (job.request.ends - job.start).total_seconds() + 1e-6, name
                assert not own.held, name
                assert sum(count_by_kind(self.cloud.listed(name, [], end.to_pydatetime())).values()) == 0
                prices = self.world.prices(name, own.markets, end.to_pydatetime())
                bill = paid_usd(own.instances.values(), prices, end.to_pydatetime())
                assert bill == pytest.approx(run.paid_usd, abs=0.005), name
                reports, decisions = reports_of(store, name), decisions_of(store, name)
                assert sum(one.lost or 0 for one in reports) == run.lost_instances, name
                self.seen["lost"] += run.lost_instances
                self.seen["decisions from evidence"] += sum(
                    row["held_from"] == "reported" for row in decisions
                )
                self.seen["revisions"] += len(revisions_by_job(store, [name])[name])


@pytest.mark.slow
def test_an_afternoon_with_the_decisions_of_the_product_and_kills(tmp_path):
    week = Week(tmp_path, jobs=1, hours=5, chance=0.08, seed=12, policy="Reserve(60)")
    week.check_the_end(week.run())
    assert week.kills["actor"].count > 0
    assert week.seen["decisions from evidence"] > 0


@pytest.mark.slow
def test_a_week_of_20_jobs_with_the_decisions_of_the_product_and_300_kills(tmp_path):
    week = Week(tmp_path, jobs=20, hours=168, chance=0.06, seed=3)
    week.check_the_end(week.run())
    counts = {who: own.count for who, own in week.kills.items()}
    assert sum(counts.values()) > 300, counts
    assert min(counts.values()) > 10, counts
    assert min(week.seen[key] for key in ("lost", "revisions", "decisions from evidence")) > 10, week.seen
