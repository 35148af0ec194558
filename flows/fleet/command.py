"""What ``slackwater fleet plan`` does: plan all open jobs together and print it beside planning them one by one. Stores nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.command.answer import print_json, print_table, say_to_stderr
from flows.command.context import logical_time, warehouse_for
from flows.config import read_settings
from flows.fleet.file import read_terms
from flows.fleet.plan import Fleet, common_time, make_fleet
from flows.jobs.file import JobRequest, read_request
from flows.turn.context import Turn
from flows.turn.markets import step_of
from optimization.fleet.audit import audit_joint
from optimization.fleet.orders import Order, plan_apart, plan_one_by_one
from optimization.fleet.prices import QUICK, Effort, plan_jointly
from optimization.fleet.problem import JointPlan, spot_used
from optimization.fleet.search import Search

#: From so many jobs on the quick effort plans.
CROWD = 60
NOTE = "advice of a joint plan: it stores nothing, and the decisions of the turns stay as they are"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options of ``slackwater fleet plan``."""

    teams: Path | None
    jobs: tuple[Path, ...]
    market: str | None
    window: int
    data: Path | None
    db: Path
    at: str | None
    settings: Path | None


def fleet_plan_command(options: FleetOptions, *, as_json: bool) -> None:
    """Plan the jobs of the warehouse together, audit the plan, and print it."""
    chosen, terms = read_settings(options.settings), read_terms(options.teams)
    requests = [_request(path, options.market) for path in options.jobs]
    with warehouse_for(options.db, options.data, say=say_to_stderr) as store:
        when, own_end = logical_time(store, options.at)
        at = common_time(store, when, own_end=own_end, step=step_of(chosen))
        turn = Turn(store=store, at=at, settings=chosen, run_id="fleet", say=say_to_stderr)
        fleet = make_fleet(turn, terms, requests, window=options.window)
    answer = fleet_answer(fleet)
    if as_json:
        print_json(answer)
        return
    print_table(
        f"{len(answer['jobs'])} jobs together for the slot of {answer['slot']}", answer["jobs"], JOB_COLUMNS
    )
    print_table("Markets in that slot", answer["markets"], MARKET_COLUMNS)
    if answer["teams"]:
        print_table("Teams", answer["teams"], TEAM_COLUMNS)
    print_table("What planning together gains", answer["compared"], COMPARED_COLUMNS)
    for note in answer["notes"]:
        print(note)


JOB_COLUMNS = {
    "job": "job", "market": "market", "on_demand": "on-demand", "spot": "spot", "moves": "moves", "priority": "priority",
    "team": "team", "pays_usd": "pays $", "utility_usd": "utility $", "one_by_one_usd": "one by one $",
}  # fmt: skip
MARKET_COLUMNS = {
    "market": "market", "spot_usd_per_hour": "spot $/h", "on_demand_usd_per_hour": "on-demand $/h", "available": "there",
    "used": "used", "wanted_alone": "wanted by jobs alone", "shadow_usd_per_hour": "shadow price $/h",
}  # fmt: skip
TEAM_COLUMNS = {"team": "team", "left_usd": "left $", "pays_usd": "pays $", "shadow": "one more $ is worth"}
COMPARED_COLUMNS = {
    "planned": "planned",
    "utility_usd": "priority x utility $",
    "gain_usd": "together gains $",
}


def fleet_answer(fleet: Fleet) -> dict[str, Any]:
    """The joint plan of a fleet as plain values, beside one by one in every order."""
    problem = fleet.problem
    effort = Effort() if len(problem.jobs) < CROWD else QUICK
    plan = plan_jointly(problem, effort, tell=lambda part: say_to_stderr(f"planning together: {part}"))
    audit_joint(problem, plan)
    searching = Search(problem, cells=effort.cells, width=effort.width)
    others = {order: plan_one_by_one(problem, order, searching=searching) for order in Order}
    best = max(others.values(), key=lambda one: one.objective)
    apart = plan_apart(problem, searching=searching)
    return {
        "slot": fleet.at.isoformat(),
        "step_minutes": fleet.step.total_seconds() / 60.0,
        "window_slots": problem.slots,
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
            f"no plan can be worth more than {plan.bound:.2f} $: the gap is {100 * plan.gap:.2f} %",
            NOTE,
            *fleet.left_out,
            *(f"fallback forecast: {text}" for text in fleet.fallbacks),
            *(f"synthetic: {text}" for text in fleet.assumed),
        ],
    }


def _job_row(fleet: Fleet, plan: JointPlan, best: JointPlan, j: int) -> dict[str, Any]:
    job, route, place = fleet.problem.jobs[j], plan.routes[j], plan.routes[j].places[0]
    return {
        "job": job.name,
        "market": place.market,
        "on_demand": place.allocation.on_demand,
        "spot": place.allocation.spot,
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


def _market_rows(fleet: Fleet, plan: JointPlan, apart: JointPlan) -> list[dict[str, Any]]:
    used, wanted = spot_used(fleet.problem, plan.routes), spot_used(fleet.problem, apart.routes)
    return [
        {
            "market": key,
            "spot_usd_per_hour": float(window.price[0]),
            "on_demand_usd_per_hour": window.on_demand_usd,
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


def _request(path: Path, market: str | None) -> JobRequest:
    request = read_request(path)
    return request.model_copy(update={"market": market}) if market is not None else request
