"""A week of acting in simulated time: jobs under a guarded rule, a simulated cloud, and kills of the actor at any moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from slackwater.flows.acting.account import MarketPrices
from slackwater.flows.acting.drivers.simulated import JobWorld, SimulatedDriver
from slackwater.flows.acting.ledger import LaunchLedger, ledger_file
from slackwater.flows.acting.loop import ActLoop
from slackwater.flows.acting.targets import ActiveJob, LastStart, Limits, SlotDecision
from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.world.simulation import Readings, WorldMarkets, WorldTerms

START = datetime(2026, 3, 2, tzinfo=UTC)
SLOT = 1800.0
MARKET = "aws/us-east-1/us-east-1a/p4d.24xlarge"
#: Seconds that a decision and its launch may take, which the guard of these jobs leaves.
REACTION = 600.0


class Killed(BaseException):
    """The process of the actor ended at this moment."""


@dataclass(frozen=True)
class SimulatedJob:
    """A job in the simulated world, from ``start`` on."""

    name: str
    start: datetime
    seconds: float
    world: JobWorld
    budget_usd: float | None = None

    @property
    def deadline(self) -> datetime:
        return self.start + timedelta(seconds=self.seconds)


def make_world(
    start: datetime, *, hours: float, load: float, rng: np.random.Generator, n_max: int = 4
) -> JobWorld:
    """Return a market whose count changes every 10 minutes, and a job that loads on-demand by ``load``."""
    steps = int(hours * 6) + 12
    counts, prices = np.zeros(steps, dtype=int), np.zeros(steps)
    level, usd = int(rng.integers(0, n_max + 1)), 0.4
    for k in range(steps):
        if rng.random() < 0.15:
            level = int(rng.integers(0, n_max + 1))
        if rng.random() < 0.1:
            usd = float(rng.uniform(0.2, 0.8))
        counts[k], prices[k] = level, usd
    spare = 1.0 - (REACTION + 900.0) / (hours * 3600.0)
    terms = WorldTerms(
        rates=(0.0, *(float(n) for n in range(1, n_max + 1))),
        workload=load * hours * n_max * spare,
        on_demand_usd=1.0,
        boot=120.0,
        restart=240.0,
        checkpoint=600.0,
    )
    readings = Readings(times=600.0 * np.arange(steps), available=counts, price=prices)
    return JobWorld(
        start=start,
        names=(MARKET,),
        markets=WorldMarkets(terms=(terms,), move_usd=np.zeros((1, 1))),
        readings=(readings,),
    )


def make_jobs(count: int, *, within_hours: float, hours: float, seed: int) -> list[SimulatedJob]:
    """Return jobs that begin at random slots."""
    rng = np.random.default_rng(seed)
    jobs = []
    for k in range(count):
        start = START + timedelta(seconds=SLOT * int(rng.integers(0, int(within_hours * 2) + 1)))
        length = float(rng.uniform(0.6, 1.0)) * hours // 0.5 * 0.5
        world = make_world(start, hours=length, load=float(rng.uniform(0.3, 0.9)), rng=rng)
        jobs.append(SimulatedJob(f"job-{k}", start, length * 3600.0, world))
    return jobs


@dataclass
class GuardedWorld:
    """The warehouse of a test: decisions by a greedy rule under the exact guard, made when `turn` is called."""

    works: dict[str, SimulatedJob]
    cloud: SimulatedDriver
    decisions: dict[str, SlotDecision] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    evidence: list[tuple[str, object]] = field(default_factory=list)

    def turn(self, now: datetime) -> None:
        """Decide the slot of ``now`` for every open job."""
        slot = START + int((now - START).total_seconds() // SLOT) * timedelta(seconds=SLOT)
        for job in self.works.values():
            if job.start <= slot < job.deadline and job.name not in self.finished:
                run = self.cloud.run(job.name, slot)
                if run.is_finished:
                    continue
                end = job.seconds - REACTION
                following = (slot - job.start).total_seconds() + SLOT
                _, target = run.guarded_in(
                    0, Allocation(0, min(run.available, 4)), next_at=following, deadline=end
                )
                self.decisions[job.name] = SlotDecision(
                    key=f"{job.name}-{slot:%d%H%M}",
                    market=MARKET,
                    slot=slot,
                    valid_until=slot + timedelta(seconds=SLOT),
                    on_demand=target.on_demand,
                    spot=target.spot,
                    standby_on_demand=target.on_demand if target.spot else None,
                    guarded=run.is_safe(target, next_at=following, deadline=end),
                )

    def jobs(self, names, now):
        """Return the open jobs and those named; a job reports its finish."""
        found = []
        for job in self.works.values():
            if job.start <= now < job.deadline or job.name in names:
                if job.name not in self.finished and self.cloud.run(job.name, now).is_finished:
                    self.finished.add(job.name)
                found.append(
                    ActiveJob(
                        name=job.name,
                        deadline=job.deadline,
                        step=timedelta(seconds=SLOT),
                        budget_usd=job.budget_usd,
                        markets=(MARKET,),
                        ended="finished" if job.name in self.finished else "",
                        decision=self.decisions.get(job.name),
                    )
                )
        return found

    def revise(self, job, launches, now):
        """Decide the rest of the slot: no spot, under the guard."""
        own, loss = self.works[job.name], launches.losses[job.decision.key]
        run = self.cloud.run(job.name, now)
        if run.is_finished:
            return "the job is finished"
        following = (job.decision.valid_until - own.start).total_seconds()
        end = own.seconds - REACTION
        _, target = run.guarded_in(0, Allocation(0, loss.left), next_at=following, deadline=end)
        return {
            "job": job.name,
            "slot": job.decision.slot.isoformat(),
            "revised_at": now.isoformat(),
            "lost_at": loss.at.isoformat(),
            "spot_left": loss.left,
            "market": MARKET,
            "on_demand": target.on_demand,
            "spot": target.spot,
            "standby_on_demand": target.on_demand if target.spot else None,
        }

    def last_start(self, job, slot):
        own = self.works[job]
        run, (terms,) = self.cloud.run(job, slot), own.world.markets.terms
        rest = (terms.workload - run.saved) / max(terms.rates) * 3600.0
        least = terms.boot + terms.restart + rest
        at = own.deadline - timedelta(seconds=least + REACTION)
        return LastStart(at=at, market=MARKET, on_demand=terms.n_max)

    def prices(self, job, markets, now):
        world = self.works[job].world
        times = world.start.timestamp() + world.readings[0].times
        prices = MarketPrices(on_demand_usd=1.0, spot_times=times, spot_usd=world.readings[0].price)
        return {MARKET: prices}

    def record(self, found, now):
        self.evidence += [(one.job, entry) for one in found for entry in one.entries]
        return {}


@dataclass
class Kills:
    """Kills at random moments: `moment` is called before and after everything that the actor does."""

    rng: np.random.Generator
    chance: float
    count: int = 0

    def moment(self) -> None:
        if self.rng.random() < self.chance:
            self.count += 1
            raise Killed


class MortalLedger(LaunchLedger):
    """A ledger whose process may be killed before, in and after each entry."""

    kills: Kills

    def add(self, entry):
        self.kills.moment()
        if self.kills.rng.random() < self.kills.chance / 2:  # half of the line reaches the disk
            self._file.write(entry.model_dump_json().encode()[:40])
            self._file.flush()
            self.kills.count += 1
            raise Killed
        super().add(entry)
        self.kills.moment()


class MortalDriver:
    """A driver whose caller may be killed before each call, or after the call took effect."""

    def __init__(self, driver, kills: Kills):
        self._driver, self._kills = driver, kills

    def __getattr__(self, name):
        return getattr(self._driver, name)

    def bring(self, order, now):
        self._kills.moment()
        brought = self._driver.bring(order, now)
        self._kills.moment()
        return brought

    def listed(self, job, markets, now):
        self._kills.moment()
        return self._driver.listed(job, markets, now)


def mortal_acting(file: Path, world, driver, kills: Kills, every: timedelta) -> ActLoop:
    """Return an actor that goes on from the ledger in ``file``, and that ``kills`` may end at any moment."""
    ledger = MortalLedger(file)
    ledger.kills = kills
    mortal, limits = MortalDriver(driver, kills), Limits(idle_slots=3, every=every)
    return ActLoop(world=world, ledger=ledger, driver_of=lambda _: mortal, limits=limits)


@dataclass
class Week:
    """Acting on jobs over simulated time with kills; ``check`` is called after each pass that was not killed."""

    folder: Path
    world: GuardedWorld
    driver: object
    kills: Kills
    every: timedelta = timedelta(minutes=5)
    check: Callable[[ActLoop, datetime], None] = lambda acting, now: None
    turns_missed: int = 0

    def run(self, hours: float) -> None:
        """Make passes and turns; a killed actor starts again within a minute, a killed turn is left out or late."""
        rng, now, acting = self.kills.rng, START, None
        end, next_turn = START + timedelta(hours=hours), START
        while now < end:
            if now >= next_turn:
                next_turn += timedelta(seconds=SLOT)
                if rng.random() < 0.15:
                    self.turns_missed += 1
                else:
                    self.world.turn(now)
            try:
                if acting is None:
                    file = ledger_file(self.folder / "w.duckdb")
                    acting = mortal_acting(file, self.world, self.driver, self.kills, self.every)
                acting.run_pass(now)
                self.check(acting, now)
                now = min(now + self.every, next_turn) if now < next_turn else now + self.every
            except Killed:
                if acting is not None:
                    acting.ledger.close()
                acting = None
                now += timedelta(seconds=float(rng.integers(1, 60)))
        if acting is not None:
            acting.ledger.close()
