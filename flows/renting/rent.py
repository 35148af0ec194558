"""The answer of ``slackwater rent``: widths, what they are compared with, and how they answer to budget and arrivals (M8)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from optimization.renting.budget import Rental, TypeRental
from optimization.renting.price import EffectivePrice
from optimization.renting.simulation import (
    Estimate,
    Played,
    Renting,
    budget_frontier,
    drawn_widths,
    elasticity,
    equal_widths,
    estimate,
    fixed_rental,
    job_stream,
    load_of,
    play_fifo,
    play_sharing,
    play_widths,
    sensitivity,
)
from optimization.renting.speedup import Exponential
from warehouse.errors import SettingsError

if TYPE_CHECKING:
    from flows.schemas.forms import Elasticity, FrontierPoint, RentedType, Sensitivity

#: Independent streams behind a simulated figure, and jobs in each.
STREAMS, JOBS = 10, 3000
#: Budgets of the frontier: so many, from this much above the load to this many times it, or beyond the budget asked for.
POINTS, NEAREST, FURTHEST = 40, 1.02, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked: a renting, the unit of its budget in words, and the seed of the simulations."""

    renting: Renting
    unit: str
    seed: int


def answer_of(question: Question, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """The whole answer as plain values; raises `SettingsError` if the budget does not cover the load."""
    renting = question.renting
    found = renting.rental()
    say("simulate the rental and its baselines")
    one_more = replace(renting, budget=renting.budget + renting.price).rental()
    return {
        "budget": renting.budget,
        "unit": question.unit,
        "whole": renting.whole,
        "seed": question.seed,
        "jobs_per_hour": found.rate_per_hour,
        "load_gpus": load_of(renting.types),
        "least_budget": renting.least_budget,
        "response_hours": found.response_hours,
        "spend": found.spend,
        "gpus": found.gpus,
        "loss_per_hour": found.loss_per_hour,
        "loss_unit": _loss_unit(question),
        "multiplier": found.multiplier,
        "hours_saved_by_one_more_gpu": found.response_hours - one_more.response_hours,
        "loss_saved_by_one_more_gpu": found.loss_per_hour - one_more.loss_per_hour,
        "mixed": found.mixed,
        "types": [_type_row(one) for one in found.types],
        "baselines": baselines(question, found),
        "frontier": frontier_rows(renting),
        "sensitivity": sensitivity_rows(renting),
        "elasticity": elasticity_rows(renting),
    }


def _loss_unit(question: Question) -> str:
    return "USD" if question.renting.types[0].delay.in_usd else "hours of response time"


def _type_row(one: TypeRental) -> RentedType:
    return {
        "type": one.kind.name,
        "rate_per_hour": one.kind.rate_per_hour,
        "load_gpus": one.kind.load,
        "widths": [{"gpus": share.width, "probability": share.probability} for share in one.shares],
        "response_hours": one.response_hours,
        "gpus": one.gpus,
        "spend": one.spend,
        "loss_per_hour": one.loss_per_hour,
    }


def widths_text(row: dict[str, Any]) -> str:
    """The widths of a type's row in words."""
    shares = row["widths"]
    if len(shares) == 1:
        return f"{shares[0]['gpus']:.4g}"
    return " or ".join(f"{share['gpus']:.4g} ({100 * share['probability']:.0f} %)" for share in shares)


def baselines(question: Question, found: Rental) -> list[dict[str, Any]]:
    """The optimum and what it is compared with, by closed form where there is one and by simulation (M8.5).

    All are on the GPUs that the budget holds: on the mean for rentals, at most for a cluster of a fixed size.
    """
    types, gpus = question.renting.types, question.renting.budget / question.renting.price
    rows = [_rental_row("fixed widths (optimal)", question, found)]
    rows.append(_compared("equal widths", question, lambda: equal_widths(types, gpus)))
    rows.append(_compared("one GPU each", question, lambda: fixed_rental(types, 1.0, gpus)))
    cluster = int(gpus + 1e-9)
    rows.append(_sharing_row(question, cluster))
    rows.append(_fifo_row(question, cluster))
    return rows


def _compared(name: str, question: Question, make: Callable[[], Rental]) -> dict[str, Any]:
    try:
        return _rental_row(name, question, make())
    except SettingsError as error:
        return {"policy": name, "note": str(error)}


def _rental_row(name: str, question: Question, rental: Rental) -> dict[str, Any]:
    types = [one.kind for one in rental.types]

    def play(rng: np.random.Generator) -> Played:
        stream = job_stream(types, hours=_hours(question), arrivals="poisson", sizes=Exponential(), rng=rng)
        return play_widths(types, drawn_widths(rental, stream, rng), stream)

    simulated = estimate(play, streams=STREAMS, seed=question.seed)
    closed = {
        "response_hours": rental.response_hours,
        "gpus": rental.gpus,
        "loss_per_hour": rental.loss_per_hour,
    }
    return {"policy": name, **closed, **_simulated(simulated)}


def _simulated(found: Estimate) -> dict[str, float]:
    return {
        "simulated_response_hours": found.response_hours,
        "response_error": found.response_error,
        "simulated_gpus": found.gpus,
        "gpus_error": found.gpus_error,
    }


def _hours(question: Question) -> float:
    return JOBS / sum(kind.rate_per_hour for kind in question.renting.types)


def _sharing_row(question: Question, cluster: int) -> dict[str, Any]:
    types = question.renting.types
    name = f"cluster of {cluster}, equal sharing"

    def play(rng: np.random.Generator) -> Played:
        stream = job_stream(types, hours=_hours(question), arrivals="poisson", sizes=Exponential(), rng=rng)
        return play_sharing(types, cluster, stream)

    try:
        return {"policy": name, **_simulated(estimate(play, streams=STREAMS, seed=question.seed))}
    except SettingsError as error:
        return {"policy": name, "note": error.found}


def _fifo_row(question: Question, cluster: int) -> dict[str, Any]:
    """First come first served, every job on a group of one size: the best of all sizes that keep up."""
    types = question.renting.types
    best: tuple[Estimate, int] | None = None
    for width in _group_sizes(cluster):

        def play(rng: np.random.Generator, width: int = width) -> Played:
            stream = job_stream(
                types, hours=_hours(question), arrivals="poisson", sizes=Exponential(), rng=rng
            )
            return play_fifo(types, cluster, width, stream)

        try:
            found = estimate(play, streams=STREAMS, seed=question.seed)
        except SettingsError:
            continue
        if best is None or found.response_hours < best[0].response_hours:
            best = found, width
    name = f"cluster of {cluster}, FIFO"
    if best is None:
        return {"policy": name, "note": f"no size of group keeps up with the load on {cluster} GPUs"}
    return {"policy": name, "note": f"groups of {best[1]}, the best size", **_simulated(best[0])}


def _group_sizes(cluster: int) -> list[int]:
    """The largest group of each number of groups: other sizes only waste GPUs."""
    return sorted({cluster // groups for groups in range(1, cluster + 1)})


def frontier_rows(renting: Renting) -> list[FrontierPoint]:
    """Response time and cost of delay of the optimum and of equal widths by budget, from right above the load on."""
    least = renting.least_budget
    furthest = max(FURTHEST * least, 1.5 * renting.budget)
    rows = []
    for found in budget_frontier(renting, np.geomspace(NEAREST * least, furthest, POINTS).tolist()):
        row: FrontierPoint = {
            "budget": found.budget,
            "response_hours": found.response_hours,
            "loss_per_hour": found.loss_per_hour,
            "spend": found.spend,
        }
        gpus = found.budget / renting.price
        if fixed_rental(renting.types, 1.0, gpus).gpus <= gpus:
            equal = equal_widths(renting.types, gpus)
            row["equal_widths_response_hours"] = equal.response_hours
            row["equal_widths_loss_per_hour"] = equal.loss_per_hour
        rows.append(row)
    return rows


def sensitivity_rows(renting: Renting) -> list[Sensitivity]:
    """The same budget at other arrival rates, of all types and of one at a time; null where it no longer covers the load."""
    return [
        {
            "arrivals_of": only or "all types",
            "factor": one.factor,
            "response_hours": one.rental.response_hours if one.rental else None,
            "loss_per_hour": one.rental.loss_per_hour if one.rental else None,
        }
        for only in _scopes(renting)
        for one in sensitivity(renting, only=only)
    ]


def elasticity_rows(renting: Renting) -> list[Elasticity]:
    """Percent more response time, and cost of delay, for one percent more arrivals."""
    rows: list[Elasticity] = []
    for only in _scopes(renting):
        response, loss = elasticity(renting, only=only)
        rows.append({"arrivals_of": only or "all types", "response": response, "loss": loss})
    return rows


def _scopes(renting: Renting) -> list[str | None]:
    names: list[str | None] = [kind.name for kind in renting.types]
    return [None, *names] if len(names) > 1 else [None]


def market_row(price: EffectivePrice, overhead_hours: float) -> dict[str, float]:
    """An effective price as plain values."""
    return {
        "usd_per_gpu_hour": price.usd_per_gpu_hour,
        "list_usd_per_gpu_hour": price.on_demand_usd,
        "spot_usd_per_gpu_hour": price.spot_usd,
        "spot_share": price.spot_share,
        "fleet_gpus": price.gpus,
        "lost_to_restarts": price.lost,
        "restart_hours": overhead_hours,
    }
