"""A week of acting with the product's own decisions on a real warehouse: kills of the actor, of turns and of the server."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from datetime import timedelta

import acting_process
import numpy as np
import pandas as pd
import pytest
from acting_kit import Killed, Kills, MortalDriver, MortalLedger
from acting_process import Mortals, door_app, post
from acting_week import simulated
from advice_kit import SOURCE, STEP
from make import make_request
from tidy_folder import START, write_tidy

from slackwater.flows.acting.account import paid_usd
from slackwater.flows.acting.contract import count_by_kind
from slackwater.flows.acting.ledger import LaunchLedger, ledger_file
from slackwater.flows.acting.loop import ActLoop
from slackwater.flows.acting.rehearsal import rehearse_turn
from slackwater.flows.acting.targets import Limits
from slackwater.flows.config import Settings
from slackwater.flows.jobs.bill import cost_rows
from slackwater.flows.ledger.decisions import decisions_of, revisions_by_job
from slackwater.flows.ledger.jobs import find_job, save_jobs
from slackwater.flows.ledger.reports import reports_of
from slackwater.optimization.policies.pool import policy_named
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import open_store

SETTINGS = Settings(history_days=3, risk_paths=10, seed=5, report_token_env="T")
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

    def __init__(self, folder, *, jobs, hours, chance, seed, policy=None, spell=12):
        self.rng, self.hours = np.random.default_rng(seed), hours
        self.policy = policy
        self.db = folder / "w.duckdb"
        tidy = write_tidy(folder / "data", days=4 + hours / 24, spell=spell)
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
        self.world, self.cloud = simulated(self.db, SETTINGS)
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
                    self.acting = ActLoop(
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
                policy = None if self.policy is None else policy_named(self.policy)
                rehearse_turn(
                    self.db, SETTINGS, MortalCloud(self.cloud, self.kills["turn"]), at, policy=policy
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
            if self.is_posted(name, at, share):
                return

    def is_posted(self, name, at, share):
        """Post a share of the work; return whether the server survived it."""
        try:
            self.kills["server"].moment()
            self.app = self.app or door_app(self.db, SETTINGS, at)
            status = asyncio.run(post(self.app, name, {"progress_share": share, "at": at.isoformat()}))
            assert status in (200, 422)
            self.seen[f"reports {status}"] += 1
            self.kills["server"].moment()
        except Killed:
            self.app = None
            return False
        return True

    def run(self):
        end = BEGIN + pd.Timedelta(hours=self.hours)
        for at in pd.date_range(BEGIN, end, freq=EVERY):
            if at == at.floor(STEP):
                self.turn(at)
            now = self.act(at)
            self.check_no_double_launch(now)
            held = [name for name, own in self.ledger_jobs().items() if own.held]
            if held and self.rng.random() < 0.4:
                self.report(str(self.rng.choice(held)), now + pd.Timedelta(minutes=4))
        if self.acting is not None:
            self.acting.ledger.close()
        return end

    def ledger_jobs(self):
        return self.acting.ledger.jobs

    def check_no_double_launch(self, now):
        for name, own in self.ledger_jobs().items():
            if own.last is not None:
                self.seen["checks"] += 1
                up = count_by_kind(self.cloud.listed(name, [], now.to_pydatetime()))
                assert up["spot"] <= own.last.order.spot
                assert up["on_demand"] <= own.last.order.on_demand

    def check_the_end(self, end):
        bills = {}
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
                billed = [row["paid_usd"] for row in cost_rows(store, name)]
                if None not in billed:
                    bills[name] = (sum(billed), run.paid_usd)
                self.seen["lost"] += run.lost_instances
                self.seen["launched"] += len(own.instances)
                self.seen["largest difference of a bill, 1e-6 USD"] = max(
                    self.seen["largest difference of a bill, 1e-6 USD"], round(1e6 * abs(bill - run.paid_usd))
                )
                self.seen["decisions from evidence"] += sum(
                    row["held_from"] == "reported" for row in decisions
                )
                self.seen["revisions"] += len(revisions_by_job(store, [name])[name])
        wrong = {name: pair for name, pair in bills.items() if pair[0] != pytest.approx(pair[1], rel=0.005)}
        assert bills
        assert not wrong
        self.seen["largest difference of `bill`, 0.01 %"] = round(
            1e4 * max(abs(bill / paid - 1.0) for bill, paid in bills.values())
        )


class ProcessWeek(Week):
    """The same with processes: `act`, turns and the server are killed by SIGKILL, at any moment of their CPU time."""

    def __init__(self, folder, *, chance, seed, **more):
        super().__init__(folder, chance=0.0, seed=seed, **more)
        self.mortals = Mortals(np.random.default_rng(seed + 9), chance)

    def act(self, at):
        while not self.mortals.run("actor", acting_process.act, self.db, at, "10min"):
            at += pd.Timedelta(seconds=int(self.rng.integers(1, 20)))
        return at

    def turn(self, at):
        while not self.mortals.run("turn", acting_process.turn, self.db, SETTINGS, at, self.policy):
            if self.rng.random() < 0.5:
                self.seen["turns left out"] += 1
                return

    def is_posted(self, name, at, share):
        survived = self.mortals.run("server", acting_process.report, self.db, SETTINGS, at, name, share)
        self.seen["reports"] += survived
        return survived

    def ledger_jobs(self):
        with LaunchLedger(ledger_file(self.db), read_only=True) as ledger:
            return ledger.jobs


@pytest.mark.slow
def test_an_afternoon_with_the_decisions_of_the_product_and_kills(tmp_path):
    week = Week(tmp_path, jobs=1, hours=5, chance=0.08, seed=12, policy="Reserve(60)")
    week.check_the_end(week.run())
    assert week.kills["actor"].count > 0
    assert week.seen["decisions from evidence"] > 0


@pytest.mark.slow
def test_a_week_of_20_jobs_with_the_decisions_of_the_product_and_300_kills(tmp_path):
    week = Week(tmp_path, jobs=20, hours=168, chance=0.2, seed=3)
    week.check_the_end(week.run())
    counts = {who: own.count for who, own in week.kills.items()}
    print(counts, dict(week.seen))
    assert sum(counts.values()) > 300, counts
    assert min(counts.values()) > 10, counts
    assert min(week.seen[key] for key in ("lost", "decisions from evidence")) > 10, week.seen
    assert week.seen["revisions"] > 0, week.seen


#: Jobs, hours and least kills of the form with processes; SLACKWATER_ACT_KILLS=N asks for about N kills.
KILLS = int(os.environ.get("SLACKWATER_ACT_KILLS", "30"))


@pytest.mark.slow
def test_processes_that_are_killed_launch_nothing_twice_and_leave_nothing(tmp_path):
    jobs = max(2, KILLS // 15)
    week = ProcessWeek(
        tmp_path, jobs=jobs, hours=8 * jobs // 2, chance=0.6, seed=21, policy="Reserve(60)", spell=4
    )
    end, kills = week.run(), week.mortals.kills
    print(f"{week.mortals.runs} processes, {week.mortals.cpu:.0f} CPU s, kills {kills}")
    week.check_the_end(end)
    print(dict(week.seen))
    assert sum(kills.values()) >= KILLS / 2, kills
    assert kills["actor"] > 0
    assert kills["turn"] > 0
    assert week.seen["lost"] > 0, week.seen
