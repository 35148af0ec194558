"""The open jobs of a warehouse in one slot: what a turn decides for them (M3.7), and one joint program beside it (M3.6)."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from flows.command import say
from flows.ledger.jobs import OpenJob, StoredJob, stored_jobs
from flows.show.formats import percent, usd
from flows.turn.context import Followed, Turn, choose_markets, market_of, placed_among, step_of
from flows.turn.forecast import forecasts_of, ready
from flows.turn.opening import open_jobs
from flows.turn.planning import decisions_as_of
from flows.turn.stages import Decided
from optimization.fleet.audit import audit_joint
from optimization.fleet.prices import QUICK, Order, SearchEffort, plan_apart, plan_jointly, plan_one_by_one
from optimization.fleet.problem import JointJob, JointPlan, JointProblem, Team, spot_used
from optimization.fleet.search import Search
from optimization.job.definition import Job
from optimization.job.request import (
    AmdahlForm,
    JobRequest,
    LinearForm,
    PowerForm,
    TableForm,
    read_request,
    run_on,
)
from optimization.job.units import gpus_per_instance
from optimization.market.window import MarketWindow, market_window, point_forecast
from optimization.window.plan import Allocation
from warehouse.errors import JobError, MarketError, SettingsError
from warehouse.history import AVAILABLE, PRICE, History

# ---
# The file that says how jobs share one market: teams with budgets, and per job its priority, caps and allowed markets.


class _PlanPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TeamTerms(_PlanPart):
    """A budget that jobs share, USD in all; ``spent_usd`` is gone already, beside what the decisions of open jobs cost."""

    cap_usd: float = Field(ge=0)
    spent_usd: float = Field(0.0, ge=0)


ThroughputForm = Annotated[LinearForm | AmdahlForm | PowerForm | TableForm, Field(discriminator="form")]


class JobTerms(_PlanPart):
    """What a job may do among others.

    ``markets`` are allowed beside its own (None: all followed ones of its source and instance type); ``throughput`` says how
    fast it is on other instance types, in the unit of its own throughput.
    """

    priority: float = Field(1.0, gt=0)
    team: str | None = None
    cap_usd: float | None = Field(None, ge=0)
    markets: tuple[str, ...] | None = None
    throughput: Mapping[str, ThroughputForm] = Field(default_factory=dict)


class MovingCost(_PlanPart):
    """What leaving a market takes beside the restart: ``minutes`` of a slot, ``usd`` for shipping the checkpoint."""

    minutes: float = Field(0.0, ge=0)
    usd: float = Field(0.0, ge=0)


class FleetTerms(_PlanPart):
    """The whole file; a job that is not named has the defaults of `JobTerms`."""

    teams: Mapping[str, TeamTerms] = Field(default_factory=dict)
    jobs: Mapping[str, JobTerms] = Field(default_factory=dict)
    moving: MovingCost = Field(default_factory=lambda: MovingCost(minutes=0.0, usd=0.0))

    def of(self, job: str) -> JobTerms:
        """The terms of a job."""
        return self.jobs.get(job) or JobTerms(priority=1.0, cap_usd=None)

    def budgets(self) -> dict[str, Team]:
        """The teams as the optimizer reads them."""
        return {name: Team(cap_usd=one.cap_usd, spent_usd=one.spent_usd) for name, one in self.teams.items()}


def cap_of(terms: JobTerms) -> float:
    """The job's cap in USD, infinite without one."""
    return math.inf if terms.cap_usd is None else terms.cap_usd


def read_terms(path: Path | None) -> FleetTerms:
    """Read the file (None: nothing is said); raises `SettingsError` naming the file, the key and what was expected."""
    if path is None:
        return FleetTerms()
    remedy = "see docs/many-jobs.md"
    try:
        terms = FleetTerms.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(
            f"teams file {path}: {error.strerror}", remedy="name a readable TOML file"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"teams file {path}: {key}: {first['msg']}", remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"teams file {path}: {error}", expected="valid TOML", remedy=remedy) from error
    for name, job in terms.jobs.items():
        if job.team is not None and job.team not in terms.teams:
            raise SettingsError(
                f"teams file {path}: job {name!r} belongs to team {job.team!r}",
                expected=f"one of {', '.join(terms.teams) or 'no team: none is given'}",
                remedy=f"add [teams.{job.team}] with cap_usd",
            )
    return terms


# ---
# All open jobs of a warehouse as one joint program, beside planning them one by one; nothing is stored (M3.6).


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Open jobs and the markets they may use at one time.

    ``window`` slots from ``at`` on; ``fallbacks`` names forecasts that another model had to answer, ``assumed`` what of a
    market was not measured, ``left_out`` which jobs and markets are not in the program, and why.
    """

    at: pd.Timestamp
    step: pd.Timedelta
    problem: JointProblem
    open: tuple[OpenJob, ...]
    fallbacks: tuple[str, ...]
    assumed: tuple[str, ...]
    left_out: tuple[str, ...]


def decided_together(turn: Turn, requests: Sequence[JobRequest]) -> Decided:
    """What `slackwater run` would decide in the slot for the open jobs, and for ``requests``, which begin then (M3.7)."""
    left_out: list[str] = []
    placed = [
        placed_among(turn, one)[0] if one.may_move else _placed(turn, one, left_out) for one in requests
    ]
    found = decisions_as_of(turn, [one for one in placed if one is not None])
    return Decided(rows=found.rows, left_out=(*left_out, *found.left_out))


def make_fleet(turn: Turn, terms: FleetTerms, requests: Sequence[JobRequest], *, window: int) -> Fleet:
    """The joint program of all jobs open at the turn's time and of ``requests``, which begin then.

    Raises `JobError` where no job is open, `MarketError` where none of their markets can be read.
    """
    left_out: list[str] = []
    asked = _open_requests(turn, left_out) + [_placed(turn, one, left_out) for one in requests]
    allowed = {
        request.name: (request, _markets_of(turn, request, terms, left_out))
        for request in asked
        if request is not None
    }
    allowed = {name: (request, markets) for name, (request, markets) in allowed.items() if markets}
    if not allowed:
        raise JobError(
            f"no job is open at {turn.at}" + (f" ({left_out[0]})" if left_out else ""),
            expected="a job whose start is past and whose deadline is not",
            remedy="`slackwater job list` lists them; give --at TIME or --job FILE --market MARKET",
        )
    followed = list(dict.fromkeys(one for _, markets in allowed.values() for one in markets))
    histories, prepared = ready(turn, {one: [one.at] for one in followed}, [turn.settings.planner])
    windows, fallbacks = {}, []
    for one in followed:
        issued = forecasts_of(
            histories[one], prepared.batches[one], settings=turn.settings, horizon=max(window - 1, 1)
        )
        windows[one.key] = _window(histories[one], issued, window)
        fallbacks += [f"{one.key}: {forecast.fallback}" for forecast in issued if forecast.fallback]
    made, opened = [], []
    homes = [
        (
            StoredJob(request=request, origin="user", step=step_of(turn.settings), created_at=turn.at),
            (markets[0],),
        )
        for request, markets in allowed.values()
    ]
    for (request, markets), running in zip(allowed.values(), open_jobs(turn, homes), strict=True):
        if not isinstance(running, OpenJob):
            left_out.append(f"job {request.name} is left out: {running}")
            continue
        places = [one for one in markets if histories[one].on_demand.sold]
        if places[:1] != list(markets[:1]):
            left_out.append(
                f"job {request.name} is left out of the joint plan: nothing is sold on demand in {markets[0].market.key}; "
                "its decided spot is kept for it"
            )
            continue
        if running.live.slot >= running.live.job.deadline_slots or running.live.is_finished:
            left_out.append(f"job {request.name} is left out: its work is done or its deadline past")
            continue
        made.append(_joint_job(running, markets, terms))
        opened.append(running)
    if not made:
        raise JobError(
            f"no job has work left at {turn.at}" + (f" ({left_out[-1]})" if left_out else ""),
            expected="an unfinished job before its deadline",
        )
    used = {key for job in made for key in job.runs}
    assumed = [
        f"{one.key}: {text}" for one in followed if one.key in used for text in histories[one].assumptions
    ]
    return Fleet(
        at=turn.at,
        step=step_of(turn.settings),
        problem=JointProblem(
            markets={key: own for key, own in windows.items() if key in used},
            jobs=tuple(made),
            teams=terms.budgets(),
        ),
        open=tuple(opened),
        fallbacks=tuple(fallbacks),
        assumed=tuple(assumed),
        left_out=tuple(left_out),
    )


def _open_requests(turn: Turn, left_out: list[str]) -> list[JobRequest | None]:
    """The stored jobs that are open at the turn's time; a job on another slot grid is left out and said."""
    found: list[JobRequest | None] = []
    for job in stored_jobs(turn.store, known_at=turn.terms_at):
        if not job.start <= turn.at < job.deadline or job.created_at > turn.at:
            continue
        if job.step != step_of(turn.settings):
            left_out.append(
                f"job {job.request.name} is left out: its slots are {job.step}, the settings' {step_of(turn.settings)}"
            )
            continue
        if job.request.may_move:
            left_out.append(_moves_alone(job.request))
            continue
        found.append(job.request)
    return found


def _moves_alone(request: JobRequest) -> str:
    return f"job {request.name} is left out of the joint plan: it may move by its own terms; its decided spot is kept for it"


def _placed(turn: Turn, request: JobRequest, left_out: list[str]) -> JobRequest | None:
    if request.may_move:
        left_out.append(_moves_alone(request))
        return None
    if request.market is None:
        raise MarketError(f"job {request.name!r} names no market", remedy="give --market MARKET")
    if request.start is not None and pd.Timestamp(request.start) > turn.at:
        left_out.append(f"job {request.name} is left out: it starts at {request.start}")
        return None
    followed = market_of(turn, request.market).for_job(request)
    return request.placed(at=turn.at, market=followed.market.key, source=followed.source)


def _markets_of(turn: Turn, request: JobRequest, terms: FleetTerms, left_out: list[str]) -> list[Followed]:
    """The markets a job may use at the turn's time, its own first; those without a fresh count are left out and said."""
    own_terms = terms.of(request.name)
    texts = [request.place, *(own_terms.markets or ())]
    try:
        found = [market_of(turn, text).for_job(request) for text in texts]
    except MarketError as error:
        left_out.append(f"job {request.name} is left out: {error}")
        return []
    if own_terms.markets is None:
        near = [one for one, _, _ in choose_markets(turn, most=turn.settings.max_markets)]
        kind = (found[0].source, found[0].market.instance_type)
        found += [one for one in near if (one.source, one.market.instance_type) == kind and one.at == turn.at]
    for one in found[1:]:
        kind_of = one.market.instance_type
        if kind_of != found[0].market.instance_type and kind_of not in own_terms.throughput:
            raise JobError(
                f"job {request.name!r} may run on {kind_of}, and its throughput there is not known",
                expected=f"[jobs.{request.name}.throughput.{kind_of}] in the teams file",
                remedy="measure it, or let `slackwater fill` predict it",
            )
    return list(dict.fromkeys(found))


def _window(history: History, issued: Sequence[object], window: int) -> MarketWindow:
    """The slot at hand as observed and the later ones as forecast (M3.1)."""
    last = history.frame.iloc[-1]
    ahead = point_forecast(issued[-1]) if issued else None  # type: ignore[arg-type]
    price, count = [float(last[PRICE])], [float(last[AVAILABLE])]
    for i in range(window - 1):
        price.append(float(ahead.price[min(i, len(ahead.price) - 1)]) if ahead is not None else price[0])
        count.append(
            float(ahead.available[min(i, len(ahead.available) - 1)]) if ahead is not None else count[0]
        )
    return market_window(
        np.array(price),
        np.array(count),
        on_demand_usd=history.on_demand_usd,
        slot_hours=history.slot_hours,
        on_demand=history.on_demand,
    )


def _joint_job(running: OpenJob, markets: Sequence[Followed], terms: FleetTerms) -> JointJob:
    live = running.live
    own, progress = terms.of(live.job.name), live.progress()
    hours = running.history.slot_hours
    return JointJob(
        name=live.job.name,
        runs={one.key: _run(running, one, terms) for one in markets},
        slot=live.slot,
        done=progress.done,
        n_previous=progress.n_previous,
        market_previous=markets[0].key if progress.n_previous else None,
        priority=own.priority,
        team=own.team,
        cap_usd=cap_of(own),
        spent_usd=progress.cost_usd,
        move_hours=min(terms.moving.minutes / 60.0, 10.0 * hours),
        move_usd=terms.moving.usd,
    )


def _run(running: OpenJob, market: Followed, terms: FleetTerms) -> Job:
    """The job on a market: its own workload and value, the throughput and the sizes of that market's instance type."""
    form = terms.of(running.live.job.name).throughput.get(market.market.instance_type)
    if form is None or market.market.instance_type == running.history.market.instance_type:
        return running.live.job
    least, most, throughput = run_on(running.request, market.market, form)
    gpus = gpus_per_instance(running.request, market.market)
    return replace(running.live.job, n_min=least, n_max=most, throughput=throughput, gpus=gpus)


# ---
# What ``fleet plan`` answers: all open jobs planned together, beside planning them one by one. Nothing is stored.

#: From so many jobs on the quick effort plans.
CROWD = 60
NOTE = (
    "the decisions are those of `slackwater run`; the joint plan is advice beside them, and nothing is stored"
)
#: Why the joint plan may answer otherwise than the decisions for the same jobs and slot.
WHY = (
    "decisions share the counts of this slot, each by the policy that leads and to the job's deadline; the joint plan knows "
    "teams, caps and priorities, lets jobs move between markets, and plans {slots} slots on the middle forecast"
)


def fleet_answer(
    turn: Turn, terms: FleetTerms, requests: Sequence[JobRequest], *, window: int
) -> dict[str, Any]:
    """What a turn decides in the slot, and the joint plan beside it with one by one in every order.

    Raises as `make_fleet` does; where no job is left for the joint plan but some are decided, it is empty.
    """
    decided = decided_together(turn, requests)
    try:
        fleet = make_fleet(turn, terms, requests, window=window)
    except JobError as error:
        if not decided.rows:
            raise
        return {
            "slot": turn.at.isoformat(),
            "step_minutes": turn.settings.step_minutes,
            "window_slots": window,
            "decisions": list(decided.rows),
            "jobs": [], "markets": [], "teams": [], "compared": [],
            "objective_usd": None, "bound_usd": None, "gap": None, "status": "no job",
            "synthetic": [],
            "notes": [f"no joint plan: {error}", *decided.left_out],
        }  # fmt: skip
    return _beside(around(fleet, decided.rows), decided)


def around(fleet: Fleet, decisions: Sequence[Mapping[str, Any]]) -> Fleet:
    """The program without the spot that decided jobs outside of it hold, in every slot of the window."""
    own = {job.name for job in fleet.problem.jobs}
    markets = dict(fleet.problem.markets)
    for row in decisions:
        key = f"{row['market']}@{row['source']}"
        if str(row["job"]) not in own and key in markets and row["spot"]:
            left = np.maximum(markets[key].available - int(row["spot"]), 0)
            markets[key] = replace(markets[key], available=left)
    return replace(fleet, problem=replace(fleet.problem, markets=markets))


def _beside(fleet: Fleet, decided: Decided) -> dict[str, Any]:
    problem = fleet.problem
    effort = SearchEffort() if len(problem.jobs) < CROWD else QUICK
    plan = plan_jointly(problem, effort, tell=lambda part: say(f"planning together: {part}"))
    audit_joint(problem, plan)
    searching = Search(problem, cells=effort.cells, width=effort.width)
    others = {order: plan_one_by_one(problem, order, searching=searching) for order in Order}
    best = max(others.values(), key=lambda one: one.objective)
    apart = plan_apart(problem, searching=searching)
    return {
        "slot": fleet.at.isoformat(),
        "step_minutes": fleet.step.total_seconds() / 60.0,
        "window_slots": problem.slots,
        "decisions": list(decided.rows),
        "jobs": [_job_row(fleet, plan, best, j) for j in range(len(problem.jobs))],
        "markets": _market_rows(fleet, plan, apart),
        "teams": _team_rows(fleet, plan),
        "compared": [_compared(f"one by one, by {order}", one, plan) for order, one in others.items()],
        "objective_usd": round(plan.objective, 4),
        "bound_usd": round(plan.bound, 4),
        "gap": round(plan.gap, 6),
        "status": str(plan.status),
        "synthetic": list(fleet.assumed),
        "notes": [
            f"no plan can be worth more than {usd(plan.bound)} USD: the gap is {percent(plan.gap)}",
            NOTE,
            *_otherwise(fleet, plan, decided.rows),
            *dict.fromkeys((*decided.left_out, *fleet.left_out)),
            *(f"fallback forecast: {text}" for text in fleet.fallbacks),
            *(f"synthetic: {text}" for text in fleet.assumed),
        ],
    }


def _otherwise(fleet: Fleet, plan: JointPlan, decisions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which jobs the joint plan treats otherwise in this slot than they are decided, and why the two may differ."""
    found, by_job = [], {str(row["job"]): row for row in decisions}
    for opened, route in zip(fleet.open, plan.routes, strict=True):
        row, place = by_job.get(opened.live.job.name), route.places[0]
        if row is None:
            continue
        key = f"{row['market']}@{row['source']}"
        decided = Allocation(int(row["on_demand"]), int(row["spot"]))
        if decided == place.allocation and place.market in (None, key):
            continue
        where = "" if place.market in (None, key) else f" on {place.market}"
        found.append(
            f"job {opened.live.job.name}: decided are {decided.on_demand} on-demand and {decided.spot} spot, "
            f"the joint plan holds {place.allocation.on_demand} and {place.allocation.spot}{where}"
        )
    return [*found, WHY.format(slots=fleet.problem.slots)] if found else []


def _job_row(fleet: Fleet, plan: JointPlan, best: JointPlan, j: int) -> dict[str, Any]:
    job, route, place = fleet.problem.jobs[j], plan.routes[j], plan.routes[j].places[0]
    return {
        "job": job.name,
        "market": place.market,
        "on_demand": place.allocation.on_demand,
        "spot": place.allocation.spot,
        "gpus": _gpus_held(job, place.market, place.allocation),
        "moves": place.market is not None and job.moves(place.market, (job.market_previous, job.n_previous)),
        "priority": job.priority,
        "team": job.team,
        "pays_usd": round(route.spent_usd, 4),
        "utility_usd": round(route.utility_usd, 4),
        "one_by_one_usd": round(best.routes[j].utility_usd, 4),
        "planned": [
            {
                "slot": (fleet.at + i * fleet.step).isoformat(),
                "market": one.market,
                "on_demand": one.allocation.on_demand,
                "spot": one.allocation.spot,
            }
            for i, one in enumerate(route.places)
        ],
        "ending": {"market": route.ending.market, "on_demand": route.ending.n, "slots": route.ending.slots},
    }


def _gpus_held(job: JointJob, market: str | None, held: Allocation) -> int | None:
    """GPUs of what a job holds; None where an instance of the market has an unknown number."""
    if market is None or not held.total:
        return 0
    gpus = job.runs[market].gpus
    return None if gpus is None else held.total * gpus


def _market_rows(fleet: Fleet, plan: JointPlan, apart: JointPlan) -> list[dict[str, Any]]:
    used, wanted = spot_used(fleet.problem, plan.routes), spot_used(fleet.problem, apart.routes)
    return [
        {
            "market": key,
            "spot_usd_per_hour": float(window.price[0]),
            "on_demand_usd_per_hour": window.on_demand_usd if window.on_demand.known else None,
            "on_demand_from": str(window.on_demand),
            "available": int(window.available[0]),
            "used": int(used[key][0]),
            "wanted_alone": int(wanted[key][0]),
            "shadow_usd_per_hour": round(float(plan.prices[key][0]), 4),
            "shadow_by_slot": [round(float(price), 4) for price in plan.prices[key]],
        }
        for key, window in sorted(fleet.problem.markets.items())
    ]


def _team_rows(fleet: Fleet, plan: JointPlan) -> list[dict[str, Any]]:
    members: Mapping[str, list[float]] = {name: [] for name in fleet.problem.teams}
    for job, route in zip(fleet.problem.jobs, plan.routes, strict=True):
        if job.team is not None:
            members[job.team].append(route.spent_usd)
    return [
        {
            "team": name,
            "left_usd": round(fleet.problem.teams[name].left_usd, 4),
            "pays_usd": round(sum(paid), 4),
            "shadow": round(plan.team_prices[name], 4),
        }
        for name, paid in members.items()
    ]


def _compared(name: str, one: JointPlan, plan: JointPlan) -> dict[str, Any]:
    return {
        "planned": name,
        "utility_usd": round(one.objective, 4),
        "gain_usd": round(plan.objective - one.objective, 4),
    }


def request_on(path: Path, market: str | None) -> JobRequest:
    """The request of a job file, on ``market`` if one is given."""
    request = read_request(path)
    return request.model_copy(update={"market": market}) if market is not None else request
