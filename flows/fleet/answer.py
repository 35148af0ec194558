"""What ``fleet plan`` answers: all open jobs planned together, beside planning them one by one. Nothing is stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.command.progress import say
from flows.fleet.plan import Fleet
from optimization.fleet.audit import audit_joint
from optimization.fleet.orders import Order, plan_apart, plan_one_by_one
from optimization.fleet.prices import QUICK, Effort, plan_jointly
from optimization.fleet.problem import JointPlan, spot_used
from optimization.fleet.search import Search
from optimization.job.request import JobRequest, read_request

#: From so many jobs on the quick effort plans.
CROWD = 60
NOTE = "advice of a joint plan: it stores nothing, and the decisions of the turns stay as they are"
#: Why a turn may answer otherwise for the same jobs and slot.
WHY = (
    "`slackwater run` decides each job as if it were alone, by the policy that leads and to the job's deadline; here "
    "counts are shared, jobs may move between markets, and {slots} slots are planned on the middle forecast"
)


def fleet_answer(fleet: Fleet) -> dict[str, Any]:
    """The joint plan of a fleet as plain values, beside one by one in every order."""
    problem = fleet.problem
    effort = Effort() if len(problem.jobs) < CROWD else QUICK
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
            *_otherwise(fleet, plan),
            *fleet.left_out,
            *(f"fallback forecast: {text}" for text in fleet.fallbacks),
            *(f"synthetic: {text}" for text in fleet.assumed),
        ],
    }


def _otherwise(fleet: Fleet, plan: JointPlan) -> list[str]:
    """Which jobs a turn has decided otherwise for this slot, and why the two may differ."""
    found = []
    for opened, route in zip(fleet.open, plan.routes, strict=True):
        decided, place = opened.live.decided.get(opened.live.slot), route.places[0]
        key = f"{opened.history.market.key}@{opened.history.source}"
        if decided is None or (decided == place.allocation and place.market in (None, key)):
            continue
        where = "" if place.market in (None, key) else f" on {place.market}"
        found.append(
            f"job {opened.live.job.name}: the turn of this slot holds {decided.on_demand} on-demand and {decided.spot} spot, "
            f"together it is {place.allocation.on_demand} and {place.allocation.spot}{where}"
        )
    return [*found, WHY.format(slots=fleet.problem.slots)] if found else []


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


def request_on(path: Path, market: str | None) -> JobRequest:
    """The request of a job file, on ``market`` if one is given."""
    request = read_request(path)
    return request.model_copy(update={"market": market}) if market is not None else request
