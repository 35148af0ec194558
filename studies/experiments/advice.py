"""``slackwater experiment advice``: replay the decisions of turns on a warehouse that starts empty (M7)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from slackwater.flows.backfill.run import Backfill, backfill, slots_between
from slackwater.flows.command import Answer, progress, say
from slackwater.flows.config import Settings
from slackwater.flows.executor import fan_out
from slackwater.flows.following import FollowedMarket
from slackwater.flows.ledger.decisions import decisions_by_job
from slackwater.flows.ledger.jobs import StoredJob, save_jobs, stored_jobs
from slackwater.flows.show.blocks import Block, Figure, Figures, Notes, numbers
from slackwater.flows.show.charts import Axis, lines, scatter
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.pool import Group, informed_learner, read_pool
from slackwater.flows.turn.score import ended_jobs
from slackwater.forecasting.accuracy.intervals import verdict
from slackwater.optimization.job.definition import Allocation
from slackwater.optimization.job.request import JobRequest
from slackwater.optimization.policies.contract import Policy, View, plans_in_world
from slackwater.optimization.policies.pace import always_worth_finishing
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import PlanMemo
from slackwater.optimization.replay.score import (
    EndedJob,
    ended_in_world,
    on_demand_only_in_world,
    replay_ended,
    with_perfect_forecasts,
)
from slackwater.optimization.selection.prior import DEFAULT_PRIOR, read_prior
from slackwater.optimization.world.terms import planned_job
from slackwater.studies.experiments.material import (
    COUNT_COLUMNS,
    LAUNCHABLE,
    LEAST_ZONES,
    PRICE_COLUMNS,
    STEP,
    count_tapes,
    price_tapes,
    read_table,
)
from slackwater.studies.experiments.pool import FAST_PLANNER
from slackwater.studies.experiments.selection import write_prior
from slackwater.studies.experiments.study import StudyOptions, quick_look
from slackwater.studies.trials.comparison import day_blocks, resampled
from slackwater.studies.trials.scenarios import GAMMA, VALUE_FACTOR, Cell, Grid, Tape
from slackwater.studies.world_bound import bound_in_world
from slackwater.warehouse.errors import MarketError
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.observations import ingest
from slackwater.warehouse.store.connection import Store, open_store

# ---
# Worlds: the markets of a source that a user could have rented in at the same time, and the jobs of that user.

#: Part of a source's record that is stored before the first turn: too short for good estimates.
BEFORE = pd.Timedelta(days=3)
#: Shorter records contain too few jobs.
LEAST_RECORD = pd.Timedelta(days=5)
FAST_DAYS = 0.75
#: The value of a job is computed from the on-demand cost of its work; its shape comes from the grid of E1 (M7).
GRID = Grid()
#: Range of slots in which the markets' first jobs begin: slot 0 in the first market, random in the others, to avoid synchrony.
STAGGERED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedMarket:
    """Market with its probe's upper limit of instances, its list price (USD per instance-hour) and the end of its record."""

    market: Market
    capacity: int
    on_demand_usd: float
    end: pd.Timestamp


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Markets of a source and instance type, with the start of their record."""

    source: str
    places: tuple[ProbedMarket, ...]
    begins: pd.Timestamp

    @property
    def name(self) -> str:
        """Instance type, source and number of zones."""
        return f"{self.places[0].market.instance_type}, {len(self.places)} zones of {self.source}"

    @property
    def starts(self) -> pd.Timestamp:
        """Slot of the first turn."""
        return (self.begins + BEFORE).ceil(STEP)

    @property
    def ends(self) -> pd.Timestamp:
        """Slot of the last turn: the earliest end of the markets' records, which differ little."""
        return min(place.end for place in self.places).floor(STEP)


def recorded_worlds(folder: Path) -> list[Recorded]:
    """Return every instance type that a source probed in enough zones for long enough and with prices of the same markets.

    At least `LEAST_ZONES` zones need records of `LEAST_RECORD` each. Worlds with most zones come first. Raises `MarketError` if
    there is none.
    """
    prices = read_table(folder, "prices", PRICE_COLUMNS)
    counts = read_table(folder, "availability", COUNT_COLUMNS)
    own = {(path.market, path.source): path for path in price_tapes(prices, counts)}
    kinds: dict[tuple[str, str], list[Tape]] = {}
    for tape in count_tapes(counts, least_capacity=1):
        if (tape.market, tape.source) in own and tape.step * len(tape) >= LEAST_RECORD:
            kinds.setdefault((tape.source, tape.market.instance_type), []).append(tape)
    worlds = [
        Recorded(
            source=source,
            places=tuple(_place(tape, own[tape.market, tape.source].bound) for tape in tapes),
            begins=max(tape.first for tape in tapes),
        )
        for (source, _), tapes in kinds.items()
        if len(tapes) >= LEAST_ZONES
    ]
    if not worlds:
        raise MarketError(
            f"{folder}: no instance type was probed in {LEAST_ZONES} zones of one source for {LEAST_RECORD.days} days with prices",
            expected=f"counts of kind {' or '.join(LAUNCHABLE)} beside spot and on-demand prices of the same markets",
            remedy="give a folder with more zones",
        )
    return sorted(
        worlds, key=lambda one: (-len(one.places), -max(p.capacity for p in one.places), one.source)
    )


def _place(tape: Tape, on_demand_usd: float) -> ProbedMarket:
    return ProbedMarket(
        market=tape.market,
        capacity=int(tape.bound),
        on_demand_usd=on_demand_usd,
        end=tape.first + tape.step * (len(tape) - 1),
    )


def jobs_of(
    world: Recorded, *, until: pd.Timestamp, rng: np.random.Generator, worth: float = VALUE_FACTOR
) -> list[JobRequest]:
    """Return consecutive jobs in every market, of cells drawn from E1's grid with an N_max that the market's probe can observe.

    The value of each job is ``worth`` times the on-demand cost of its work.
    """
    requests: list[JobRequest] = []
    for place in world.places:
        cells = [cell for cell in GRID.cells if cell.n_max <= place.capacity] or [
            replace(cell, n_max=1) for cell in GRID.cells if cell.n_max == min(GRID.n_maxes)
        ]
        start = world.starts + STEP * (int(rng.integers(STAGGERED)) if requests else 0)
        while True:
            cell = cells[int(rng.integers(len(cells)))]
            ends = start + STEP * cell.deadline_slots
            if ends > until:
                break
            requests.append(
                _request(
                    f"{place.market.zone}-{len(requests) + 1:04d}", place, world.source, cell, start, worth
                )
            )
            start = ends
    return requests


def _request(
    name: str, place: ProbedMarket, source: str, cell: Cell, start: pd.Timestamp, worth: float
) -> JobRequest:
    hours = STEP / pd.Timedelta(hours=1)
    work = cell.load * cell.deadline_slots * cell.n_max * hours
    return JobRequest.model_validate(
        {
            "name": name,
            "market": place.market.key,
            "source": source,
            "start": start.to_pydatetime(),
            "deadline": (start + STEP * cell.deadline_slots).to_pydatetime(),
            "n_max": cell.n_max,
            "workload": {"amount": work, "unit": "instance_hours"},
            "throughput": {"form": "linear"},
            "checkpoint": {
                "resumable": True,
                "overhead_minutes": (1.0 - cell.mu_up) * 60.0 * hours,
                "shrink_overhead_minutes": (1.0 - cell.mu_down) * 60.0 * hours,
            },
            "value_usd": worth * work * place.on_demand_usd,
            "decay": GAMMA,
        }
    )


# ---
# A simulated warehouse: filled slot by slot by the stages of live turns, then read.

#: Results compared with the pool's policies. The selections other than the default choose from the same rounds and are
#: replayed on the same forecasts.
ADVICE, NO_PRIOR = "advice", "advice without prior"
SELECTIONS = (ADVICE, NO_PRIOR)
BEST_FIXED = "best fixed policy in hindsight"
#: Cost that no policy in the world can undercut (M12.14); no policy reaches it.
BOUND = "bound"
#: Policies shown in the tables.
SHOWN = ("OD-only", "UP", "MSU", "MSU-trim")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvisedSlot:
    """Decision of a slot: allocation, deciding policy, probability of missing the deadline, expected total cost (USD)."""

    held: Allocation
    policy: str
    late: float
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Advised:
    """Ended job with the decision of each of its slots (None: no decision), and the leading policy per slot by selection."""

    ended: EndedJob
    world: str
    market: str
    advice: tuple[AdvisedSlot | None, ...]
    leads: Mapping[str, tuple[str, ...]]
    pool: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedOutcome:
    """Simulated outcome of a job. Utilities are in units of its on-demand-only cost ``unit`` (USD).

    ``worth``: the job's value in that unit. ``utility``: by name of the pool's policies, the selections and `BOUND`.
    ``right``: utility of the deciding policies with perfect forecasts (None: no forecast was issued). ``apart``: number of slots
    in which the replay of the deciding policies differs from the advice. ``silent``: number of slots without a decision.
    """

    job: str
    world: str
    market: str
    start: pd.Timestamp
    slots: int
    n_max: int
    unit: float
    worth: float
    utility: Mapping[str, float]
    right: float | None
    cost_usd: float
    on_time: bool
    advice: tuple[AdvisedSlot | None, ...]
    apart: int
    silent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowAdvice:
    """Policy that requests the advised allocation in each slot, and nothing in slots without a decision.

    A turn without a count of its own slot may advise more spot instances than are there: those that exist are granted.
    """

    advice: tuple[AdvisedSlot | None, ...]
    name: str = ADVICE

    def start(self, job: Any) -> None:
        """Return no state."""

    def decide(self, state: None, view: View) -> tuple[Allocation, None]:
        """Return the allocation advised for the slot, with at most the spot instances that are there."""
        advised = self.advice[view.slot]
        held = Allocation(0, 0) if advised is None else advised.held
        return replace(held, spot=min(held.spot, view.available)), None

    def explain(self, state: None, view: View, allocation: Allocation) -> str:
        """Return a constant text."""
        return "as advised"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowLeaders:
    """Policy that follows the policy named in ``leads`` for each slot; every policy decides in every slot, to update its state.

    Each sees the job as in a turn: in the world where it plans there, else as it is planned (M12.11).
    """

    policies: tuple[Policy[Any], ...]
    leads: tuple[str, ...]
    name: str = ADVICE
    plans_in_world: bool = True

    def start(self, job: Any) -> tuple[Any, ...]:
        """Return the states of all policies, and the caches of the job as it is planned."""
        return (*(policy.start(job) for policy in self.policies), ({}, {}))

    def decide(self, state: tuple[Any, ...], view: View) -> tuple[Allocation, tuple[Any, ...]]:
        """Return the allocation of the slot's leader."""
        *states, caches = state
        planned = _as_planned(view, caches)
        made = {
            policy.name: policy.decide(own, view if plans_in_world(policy) else planned)
            for policy, own in zip(self.policies, states, strict=True)
        }
        return made[self.leads[view.slot]][0], (*(after for _, after in made.values()), caches)

    def explain(self, state: tuple[Any, ...], view: View, allocation: Allocation) -> str:
        """Return the name of the slot's leader."""
        return self.leads[view.slot]


def _as_planned(view: View, caches: tuple[dict[Any, Any], dict[Any, Any]]) -> View:
    """Return the view of a slot for policies of the slot model."""
    if view.running is None:
        return view
    job, due = view.job, view.job.deadline_slots
    kept = view.on_demand.sold and always_worth_finishing(job, view.on_demand_usd, view.slot_hours)
    planned = planned_job(job, slot_hours=view.slot_hours)
    if due < 2 or not kept or view.slot >= planned.deadline_slots:
        return replace(view, running=None)
    return replace(view, job=planned, running=None, windows=caches[0], tables=caches[1])


def follow_leaders(leads: Sequence[str]) -> FollowLeaders:
    """Return the policy that follows the leaders by slot."""
    return FollowLeaders(
        policies=tuple(policy_named(name) for name in dict.fromkeys(leads)), leads=tuple(leads)
    )


def run_turns(
    world: Recorded,
    requests: Sequence[JobRequest],
    *,
    data: Path,
    db: Path,
    settings: Settings,
    until: pd.Timestamp,
    workers: int,
) -> None:
    """Run turns slot after slot, by a backfill, on a warehouse that starts with `BEFORE` of a source's record.

    A turn uses only observations known in its slot: an observation counts from the time at which it was made (M1.2).
    """
    with open_store(db) as store:
        ingest(store, "tabular", _only(data, world, db.parent), imported_at=world.starts)
        save_jobs(store, requests, origin="user", at=world.starts, step=STEP)
    stages = ("forecast", "allocate", "score")
    slot_range = slots_between(world.starts, until, slot=STEP, stages=stages)
    total, done = len(stages) * len(slot_range.slots()), 0
    with progress(f"stages of turns, {world.name}", total, lines=True) as tell:

        def advance(more: int) -> None:
            nonlocal done
            done += more
            tell(done, total)

        backfill(
            Backfill(
                db=db, slot_range=slot_range, settings=settings, workers=workers, say=say, progress=advance
            )
        )


def _only(data: Path, world: Recorded, folder: Path) -> Path:
    """Write the rows of a single world to tables in ``folder``/data and return that folder."""
    made = folder / "data"
    made.mkdir(exist_ok=True)
    for name, columns in (("prices", PRICE_COLUMNS), ("availability", COUNT_COLUMNS)):
        table = read_table(data, name, columns)
        own = table["source"].eq(world.source)
        own &= table["instance_type"].eq(world.places[0].market.instance_type)
        table[own].to_parquet(made / f"{name}.parquet", index=False)
    return made


def advised_jobs(db: Path, world: Recorded, *, settings: Settings, until: pd.Timestamp) -> list[Advised]:
    """Return the user's ended jobs of a warehouse with all decisions on them, in the order of their starts."""
    with open_store(db) as store:
        turn = Turn(store=store, at=until, settings=settings, run_id=run_id_of(until))
        jobs = [job for job in stored_jobs(store) if job.origin == "user" and job.deadline <= until]
        pairs = [(job, _follow(job, until)) for job in jobs]
        slots = pd.date_range(world.starts, until, freq=STEP)
        leads = {
            name: {
                at: policy.name for at, (policy, _) in zip(slots, group.deciding(list(slots)), strict=True)
            }
            for name, group in _selections(turn).items()
        }
        decisions = decisions_by_job(store, [job.request.name for job in jobs])
        pool = _pool_utilities(store)
        ended = ended_jobs(turn, [(job, (followed,)) for job, followed in pairs])
        return [
            Advised(
                ended=one,
                world=world.name,
                market=str(job.request.market),
                advice=_advise(decisions[job.request.name], grid := _slots(job)),
                leads={name: tuple(by[at] for at in grid) for name, by in leads.items()},
                pool=pool[job.request.name],
            )
            for job, one in zip(jobs, ended, strict=True)
            if isinstance(one, EndedJob)
        ]


def _follow(job: StoredJob, at: pd.Timestamp) -> FollowedMarket:
    return FollowedMarket(market=Market.parse(str(job.request.market)), source=str(job.request.source), at=at)


def _slots(job: StoredJob) -> pd.DatetimeIndex:
    return pd.date_range(job.start, job.deadline, freq=STEP, inclusive="left")


def _selections(turn: Turn) -> dict[str, Group[Policy[Any]]]:
    """Return the selection of the settings, and a selection that learned from the same jobs without the prior."""
    pool = read_pool(turn)
    blank = turn.settings.model_copy(update={"prior_jobs": 0})
    return {ADVICE: pool, NO_PRIOR: replace(pool, learner=informed_learner(blank), informed=False)}


def _advise(decisions: Sequence[Mapping[str, Any]], grid: pd.DatetimeIndex) -> tuple[AdvisedSlot | None, ...]:
    by = {
        pd.Timestamp(row["slot"]): AdvisedSlot(
            held=Allocation(int(row["on_demand"]), int(row["spot"])),
            policy=str(row["policy"]),
            late=float(row["late_probability"]),
            cost_usd=float(row["expected_cost_usd"]),
        )
        for row in decisions
    }
    return tuple(by.get(at) for at in grid)


def _pool_utilities(store: Store) -> dict[str, dict[str, float]]:
    """Return the utility of each policy for each job, in units of the job's on-demand-only cost."""
    found: dict[str, dict[str, float]] = {}
    rows = read_rows(store, "outcomes")
    for job, policy, details in zip(rows["job"], rows["policy"], rows["details"], strict=True):
        found.setdefault(job, {})[policy] = float(json.loads(details)["utility"])
    return found


def simulate_outcome(one: Advised, _: None = None) -> SimulatedOutcome:
    """Return the outcome in the world of a job that followed the advice, with the utilities of the other selections."""
    ended, memo = one.ended, PlanMemo()
    (case,) = ended.cases
    job = case.job
    _size, unit = on_demand_only_in_world(job, case.window)
    selections = [follow_leaders(leads) for leads in one.leads.values()]
    real, *others = replay_ended(ended, [FollowAdvice(advice=one.advice), *selections], memo)
    by_name = dict(zip(one.leads, others, strict=True))
    known = with_perfect_forecasts(case)
    right = []
    if known is not None:
        right = replay_ended(
            replace(ended, cases=(known,)), [selections[list(one.leads).index(ADVICE)]], memo
        )
    utility = {name: outcome.utility_usd / unit for name, outcome in by_name.items()}
    again = by_name[ADVICE].allocations
    used = real.allocations
    return SimulatedOutcome(
        job=job.name,
        world=one.world,
        market=one.market,
        start=ended.start,
        slots=job.deadline_slots,
        n_max=job.n_max,
        unit=unit,
        worth=job.value / unit,
        utility={
            **one.pool,
            **utility,
            ADVICE: real.utility_usd / unit,
            BOUND: bound_in_world(ended_in_world(ended)).utility_usd / unit,
        },
        right=right[0].utility_usd / unit if right else None,
        cost_usd=real.total_cost_usd,
        on_time=real.on_time,
        advice=one.advice[: len(used)],
        apart=sum(a != b for a, b in zip(used, again, strict=False)) + abs(len(used) - len(again)),
        silent=sum(slot is None for slot in one.advice[: len(used)]),
    )


# ---
# The experiment and its result.


def advice_study(
    study: StudyOptions,
    *,
    processes: int | None = None,
    worth: float = VALUE_FACTOR,
    days: float | None = None,
) -> Answer:
    """Simulate every world of a folder and report the results."""
    value = advice_answer(study, workers=study.workers(processes), worth=worth, days=days)
    return advice_report(value)


def advice_answer(
    study: StudyOptions, *, workers: int, worth: float = VALUE_FACTOR, days: float | None = None
) -> dict[str, Any]:
    """Return all figures of the experiment as plain values; the same folder, seed and options give the same figures."""
    worlds = recorded_worlds(study.data)
    outcomes: list[SimulatedOutcome] = []
    for number, world in enumerate(worlds[:1] if study.fast else worlds):
        outcomes += simulate_world(study, world, number, workers=workers, worth=worth, days=days)
    return answer_of(outcomes, data=str(study.data), seed=study.seed, fast=study.fast) | {"worth": worth}


def simulate_world(
    study: StudyOptions,
    world: Recorded,
    number: int,
    *,
    workers: int,
    worth: float = VALUE_FACTOR,
    days: float | None = None,
) -> list[SimulatedOutcome]:
    """Return the outcomes of the jobs of a world, simulated in a temporary warehouse over its first ``days`` (None: all)."""
    days = FAST_DAYS if days is None and study.fast else days
    until = world.ends if days is None else min(world.ends, world.starts + pd.Timedelta(days=days))
    requests = jobs_of(world, until=until, rng=np.random.default_rng([study.seed, number]), worth=worth)
    with TemporaryDirectory(prefix="slackwater-advice-") as name:
        db = Path(name) / "warehouse.duckdb"
        settings = settings_for(world, db.parent, seed=study.seed, fast=study.fast)
        run_turns(world, requests, data=study.data, db=db, settings=settings, until=until, workers=workers)
        advised = advised_jobs(db, world, settings=settings, until=until)
    with progress(f"jobs of {world.name}", len(advised), lines=True) as tell:
        return list(fan_out(simulate_outcome, advised, None, processes=workers, progress=tell))


def settings_for(world: Recorded, folder: Path, *, seed: int, fast: bool = False) -> Settings:
    """Return the default settings, with a prior that excludes measurements from the world's source.

    The planner is the only forecaster, because other models do not affect decisions. With ``fast`` it is a faster planner.
    """
    prior = folder / "prior.toml"
    write_prior(prior, [one for one in read_prior(DEFAULT_PRIOR) if one.source != world.source])
    default = Settings.model_validate({})
    planner = FAST_PLANNER if fast else default.planner
    return default.model_copy(
        update={"seed": seed, "models": (planner,), "planner": planner, "measured_origins": 0, "prior": prior}
    )


#: Bin edges of the predicted probability of missing the deadline.
CHANCES = (0.0, 0.001, 0.01, 0.05, 0.2, 0.5, 1.0)


def answer_of(outcomes: Sequence[SimulatedOutcome], *, data: str, seed: int, fast: bool) -> dict[str, Any]:
    """Return the object of ``experiment advice --json``; utilities are in units of a job's on-demand-only cost."""
    worlds = list(dict.fromkeys(one.world for one in outcomes))
    groups = {"all": list(outcomes)} | {
        name: [one for one in outcomes if one.world == name] for name in worlds
    }
    return {
        "data": data,
        "seed": seed,
        "fast": fast,
        "jobs": len(outcomes),
        "worlds": [_world_answer(name, own, seed) for name, own in groups.items()],
        "lost": [_lost_answer(name, own) for name, own in groups.items()],
        **{key: _late_rows(own, seed) for key, own in _chances(outcomes).items()},
        "money": [_money_answer(name, own) for name, own in groups.items()],
        "course": _course_rows(groups),
        "each": [_job_row(one) for one in outcomes],
        "silent_slots": sum(one.silent for one in outcomes),
        "slots_apart": sum(one.apart for one in outcomes),
        "slots": sum(len(one.advice) for one in outcomes),
    }


def best_fixed(outcomes: Sequence[SimulatedOutcome]) -> str:
    """Return the policy of the pool with the largest mean utility over these jobs."""
    names = [name for name in outcomes[0].utility if name not in (*SELECTIONS, BOUND)]
    return max(names, key=lambda name: float(np.mean([one.utility[name] for one in outcomes])))


def _table(outcomes: Sequence[SimulatedOutcome], names: Sequence[str]) -> np.ndarray:
    return np.array([[one.utility[name] for name in names] for one in outcomes])


def _blocks(outcomes: Sequence[SimulatedOutcome]) -> np.ndarray:
    return day_blocks([one.market for one in outcomes], [one.start for one in outcomes])


def _world_answer(name: str, outcomes: Sequence[SimulatedOutcome], seed: int) -> dict[str, Any]:
    """Return means over the jobs of a world, with the interval of the difference between the advice and each alternative."""
    best = best_fixed(outcomes)
    names = [*SELECTIONS, *SHOWN, best, BOUND]
    values = _table(outcomes, names)
    drawn = resampled(values[:, :1] - values, blocks=_blocks(outcomes), rng=np.random.default_rng(seed))
    low, high = drawn.interval()
    first, worth = _first_jobs(outcomes), np.array([one.worth for one in outcomes])
    return {
        "world": name,
        "jobs": len(outcomes),
        "first_jobs": int(first.sum()),
        "blocks": drawn.blocks,
        "best_fixed": best,
        "late": sum(not one.on_time for one in outcomes),
        "rows": [
            {
                "what": f"{BEST_FIXED}: {what}" if k == len(names) - 2 else what,
                "mean_cost": float((worth - values[:, k]).mean()),
                "mean_utility": float(values[:, k].mean()),
                "advice_ahead": float((values[:, 0] - values[:, k]).mean()),
                "low": float(low[k]),
                "high": float(high[k]),
                "verdict": verdict(float(low[k]), float(high[k]), above="wins", below="loses") if k else "",
                "first_jobs": float((values[:, 0] - values[:, k])[first].mean()),
            }
            for k, what in enumerate(names)
        ],
    }


def _first_jobs(outcomes: Sequence[SimulatedOutcome]) -> np.ndarray:
    """Return which jobs began no later than the first end of a job in their warehouse, shape (jobs,)."""
    taught: dict[str, pd.Timestamp] = {}
    for one in outcomes:
        ends = one.start + STEP * one.slots
        taught[one.world] = min(ends, taught.get(one.world, ends))
    return np.array([one.start <= taught[one.world] for one in outcomes])


def _lost_answer(name: str, outcomes: Sequence[SimulatedOutcome]) -> dict[str, Any]:
    """Return a breakdown of the gap between the bound and the advice, as means over jobs.

    ``fixed`` is the loss of the best fixed policy; ``choosing`` is the further loss of the advice compared with that policy, split
    into the first jobs, before any job had ended (``cold_start``), and the later jobs (``learning``). ``fixed`` and ``choosing``
    add up to ``gap``. ``forecast_error`` is a different breakdown of the same gap: the utility that the deciding policies would
    have gained with perfect forecasts.
    """
    best = best_fixed(outcomes)
    advice, fixed, most = _table(outcomes, [ADVICE, best, BOUND]).T
    first = _first_jobs(outcomes)
    behind = fixed - advice
    right = np.array([one.utility[ADVICE] if one.right is None else one.right for one in outcomes])
    return {
        "world": name,
        "jobs": len(outcomes),
        "gap": float((most - advice).mean()),
        "fixed": float((most - fixed).mean()),
        "choosing": float(behind.mean()),
        "cold_start": float(np.where(first, behind, 0.0).mean()),
        "learning": float(np.where(first, 0.0, behind).mean()),
        "forecast_error": float((right - advice).mean()),
        "fixed_usd": float(
            np.mean([(m - f) * one.unit for m, f, one in zip(most, fixed, outcomes, strict=True)])
        ),
        "choosing_usd": float(np.mean([b * one.unit for b, one in zip(behind, outcomes, strict=True)])),
    }


def _chances(outcomes: Sequence[SimulatedOutcome]) -> dict[str, list[SimulatedOutcome]]:
    """Return the groups of decisions for which the predicted probability of missing the deadline is checked.

    The groups are all decisions, those on jobs that began in the second half of their world's starts (not used to choose the
    belief), and the first decision of each job.
    """
    worlds = {one.world: [other.start for other in outcomes if other.world == one.world] for one in outcomes}
    middle = {name: min(starts) + (max(starts) - min(starts)) / 2 for name, starts in worlds.items()}
    return {
        "late": list(outcomes),
        "late_later": [one for one in outcomes if one.start > middle[one.world]],
        "late_first": [replace(one, advice=one.advice[:1]) for one in outcomes],
    }


def _late_rows(outcomes: Sequence[SimulatedOutcome], seed: int) -> list[dict[str, Any]]:
    """Return the calibration: decisions binned by predicted probability of missing the deadline, with the observed frequency.

    The interval of the observed frequency resamples blocks of market and day, because the decisions of a job share its outcome.
    """
    blocks = _blocks(outcomes) if outcomes else np.array([], dtype=int)
    predicted = np.array([slot.late for one in outcomes for slot in one.advice if slot is not None])
    late = np.array([not one.on_time for one in outcomes for slot in one.advice if slot is not None])
    job = np.array([k for k, one in enumerate(outcomes) for slot in one.advice if slot is not None])
    place = np.clip(np.searchsorted(CHANCES, predicted, side="right") - 1, 0, len(CHANCES) - 2)
    rows = []
    for k, (low, high) in enumerate(pairwise(CHANCES)):
        own = place == k
        interval: list[float | None] = [None, None]
        if own.any():
            drawn = resampled(
                late[own, None].astype(float), blocks=blocks[job[own]], rng=np.random.default_rng(seed)
            )
            interval = [float(end[0]) if np.isfinite(end[0]) else None for end in drawn.interval()]
        rows.append(
            {
                "from": low,
                "to": high,
                "decisions": int(own.sum()),
                "jobs": len(np.unique(job[own])),
                "predicted": float(predicted[own].mean()) if own.any() else None,
                "observed": float(late[own].mean()) if own.any() else None,
                "low": interval[0],
                "high": interval[1],
            }
        )
    return rows


def _money_answer(name: str, outcomes: Sequence[SimulatedOutcome]) -> dict[str, Any]:
    """Return the cost expected by each job's first decision and the cost paid, in units of the job's on-demand-only cost."""
    pairs = [
        (one.advice[0].cost_usd / one.unit, one.cost_usd / one.unit)
        for one in outcomes
        if one.advice and one.advice[0]
    ]
    expected, paid = np.array(pairs).reshape(-1, 2).T
    return {
        "world": name,
        "jobs": len(pairs),
        "expected": float(expected.mean()),
        "paid": float(paid.mean()),
        "mean_absolute_error": float(np.abs(paid - expected).mean()),
    }


def _course_rows(groups: Mapping[str, Sequence[SimulatedOutcome]]) -> list[dict[str, Any]]:
    """Return, after each job of a world by start, the mean so far of each selection minus that of the world's best fixed policy."""
    rows = []
    for name, outcomes in groups.items():
        if name == "all":
            continue
        own = sorted(outcomes, key=lambda one: (one.start, one.job))
        names = list(SELECTIONS)
        values = _table(own, [*names, best_fixed(own)])
        ahead = (values[:, :-1] - values[:, -1:]).cumsum(axis=0) / np.arange(1, len(own) + 1)[:, None]
        for k in np.unique(np.linspace(0, len(own) - 1, min(len(own), 60)).round().astype(int)):
            rows += [
                {"world": name, "job": int(k) + 1, "what": what, "ahead": float(ahead[k, i])}
                for i, what in enumerate(names)
            ]
    return rows


def _job_row(one: SimulatedOutcome) -> dict[str, Any]:
    first = one.advice[0] if one.advice else None
    return {
        "job": one.job,
        "world": one.world,
        "market": one.market,
        "start": one.start.isoformat(),
        "slots": one.slots,
        "n_max": one.n_max,
        "on_demand_only_usd": one.unit,
        "cost_usd": one.cost_usd,
        "on_time": one.on_time,
        "expected_cost_usd": None if first is None else first.cost_usd,
        "late_predicted": None if first is None else first.late,
        "followed": sorted({slot.policy for slot in one.advice if slot is not None}),
        **{
            name.replace(" ", "_").replace("-", "_").lower(): one.utility[name]
            for name in (*SELECTIONS, *SHOWN, BOUND)
        },
    }


ROWS = {
    "what": "what", "mean_cost": "cost", "advice_ahead": "advice ahead by", "low": "95 % from", "high": "to", "verdict": "advice",
    "first_jobs": "in the first jobs",
}  # fmt: skip
LOST = {
    "world": "world", "jobs": "jobs", "gap": "to the bound", "fixed": "best fixed policy's", "choosing": "by choosing",
    "cold_start": "of it cold start", "learning": "of it learning", "forecast_error": "forecast error",
}  # fmt: skip
LATE = {
    "from": "predicted from",
    "to": "to",
    "decisions": "decisions",
    "jobs": "jobs",
    "predicted": "predicted",
    "observed": "observed",
    "low": "95 % from",
    "high": "to",
}
#: Names of the groups of decisions.
CHANCES_OF = {
    "late": "all decisions",
    "late_later": "jobs of the later half",
    "late_first": "first decision of each job",
}
MONEY = {
    "world": "world",
    "jobs": "jobs",
    "expected": "expected at first",
    "paid": "paid",
    "mean_absolute_error": "mean error",
}


def advice_report(answer: dict[str, Any]) -> Answer:
    """Return the result as a page with tables."""
    whole = answer["worlds"][0]
    by = {row["what"]: row for row in whole["rows"]}
    fixed = next(row for row in whole["rows"] if row["what"].startswith(BEST_FIXED))
    findings = [
        f"{answer['jobs']} jobs, {answer['slots']} decisions, {whole['late']} late: advice paid {by[ADVICE]['mean_cost']:.4f} of "
        f"on-demand only, {-fixed['advice_ahead']:.4f} more ({-fixed['high']:.4f} to {-fixed['low']:.4f}) than "
        f"{whole['best_fixed']}, the best fixed policy in hindsight; in the {whole['first_jobs']} jobs that began before any had "
        f"ended {-fixed['first_jobs']:.4f} more.",
        f"UP paid {by['UP']['mean_cost']:.4f}, MSU-trim {by['MSU-trim']['mean_cost']:.4f}, the bound is "
        f"{by[BOUND]['mean_cost']:.4f}.",
        f"The prior measured on other sources is worth {by[NO_PRIOR]['advice_ahead']:.4f} a job ({by[NO_PRIOR]['low']:.4f} to "
        f"{by[NO_PRIOR]['high']:.4f}), {by[NO_PRIOR]['first_jobs']:.4f} in the first jobs.",
        f"{answer['silent_slots']} slots had no decision; in {answer['slots_apart']} the policies that decided, replayed "
        "afterwards, hold another allocation than advised.",
    ]
    answer |= {"findings": findings}
    tables = [
        numbers(ROWS, world["rows"], title=f"{world['world']}: {world['jobs']} jobs, {world['late']} late")
        for world in answer["worlds"]
    ]
    blocks: list[Block] = [
        Notes(findings),
        Figures([_course_figure(world["world"], answer["course"]) for world in answer["worlds"][1:]]),
        *tables,
        numbers(LOST, answer["lost"], title="Lost, in units of on-demand only"),
        Figures(_chance_figures(answer)),
        *(
            numbers(LATE, answer[key], title=f"P(late), predicted and observed: {words}")
            for key, words in CHANCES_OF.items()
        ),
        numbers(MONEY, answer["money"], title="Cost expected by a job's first decision, and paid"),
    ]
    return Answer(
        title="Advice of past turns" + quick_look(answer),
        about=(
            f"A warehouse for each source of {answer['data']}, begun {BEFORE.days} days into its record and "
            f"with turns slot after slot as of that time, with the default settings and jobs drawn with seed "
            f"{answer['seed']}. Costs and utilities are in units of a job's on-demand-only cost; value lost by lateness "
            "counts as a cost. The prior leaves out the source."
        ),
        value=answer,
        blocks=blocks,
    )


def _chance_figures(answer: Mapping[str, Any]) -> list[Figure]:
    """Return the calibration chart (predicted on x, observed on y); none if no predicted probability reaches 1 %."""
    rows: list[dict[str, Any]] = [
        {"x": 100 * row["predicted"], "y": 100 * row["observed"], "series": words}
        | (
            {"text": f"{row['decisions']:,}"} if row["predicted"] >= 0.05 else {}
        )  # below this the labels overlap
        for key, words in CHANCES_OF.items()
        for row in answer[key]
        if row["predicted"] is not None
    ]
    if not any(row["x"] >= 1.0 for row in rows):
        return []
    return [
        Figure(
            title="P(late)",
            specs=lambda: [
                scatter(
                    rows,
                    list(CHANCES_OF.values()),
                    x=Axis(title="predicted P(late), %", low=0, high=100),
                    y=Axis(title="share of jobs late, %", low=0, high=100),
                    diagonal=(0, 100),
                )
            ],
            captions=["On the line the prediction holds; the number at a mark counts its decisions."],
            label="Predicted P(late) and share of jobs late",
            width=460,
        )
    ]


def _course_figure(world: str, rows: Sequence[Mapping[str, Any]]) -> Figure:
    own = [
        {"x": row["job"], "y": row["ahead"], "series": row["what"]} for row in rows if row["world"] == world
    ]
    return Figure(
        title=world,
        specs=lambda: [
            lines(
                own,
                SELECTIONS,
                x=Axis(title="jobs advised on"),
                y=Axis(title="mean so far, best fixed policy = 0"),
                rule=0.0,
                points=False,
                bold=ADVICE,
            )
        ],
        label=f"Mean utility of the advice less that of the best fixed policy, over the jobs of {world}",
    )
