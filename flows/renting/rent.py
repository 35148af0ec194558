"""Answer of ``rent``: job types from a file, the price of a GPU in a market, widths and baselines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field, ValidationError

from slackwater.flows.clock import now
from slackwater.flows.command import Session, say
from slackwater.flows.places import market_of
from slackwater.flows.turn.context import query_turn
from slackwater.flows.turn.forecast import forecasts_of, ready
from slackwater.optimization.job.units import catalogue_gpus
from slackwater.optimization.renting.budget import JobType, Rental, TypeRental
from slackwater.optimization.renting.price import (
    DeadlineDelay,
    Delay,
    EffectivePrice,
    PricedDelay,
    affordable,
    forecast_outlook,
    loss_rate,
)
from slackwater.optimization.renting.simulation import (
    Estimate,
    Renting,
    Stream,
    StreamMeans,
    budget_frontier,
    drawn_widths,
    equal_widths,
    estimate,
    fixed_rental,
    job_stream,
    load_of,
    play_fifo,
    play_sharing,
    play_widths,
)
from slackwater.optimization.renting.speedup import (
    SIZE_DISTRIBUTIONS,
    AmdahlSpeedup,
    Exponential,
    PowerSpeedup,
    Speedup,
    TableSpeedup,
)
from slackwater.warehouse.documents import EXAMPLES, read_toml
from slackwater.warehouse.errors import JobError, MarketError, SettingsError, SlackwaterError
from slackwater.warehouse.history import Market
from slackwater.warehouse.inputs import InputModel, error_parts

if TYPE_CHECKING:
    from slackwater.flows.renting.command import RentalRequest


Width = Annotated[float, Field(ge=1, le=1e6)]
Positive = Annotated[float, Field(ge=1e-9, le=1e9)]


class AmdahlPart(InputModel):
    """Amdahl speedup s(k) = 1 / ((1 - parallel) + parallel / k)."""

    form: Literal["amdahl"]
    parallel: float = Field(ge=0, le=1)
    most: Width | None = None

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """Return the speedup and a note, which is empty."""
        return AmdahlSpeedup(parallel=self.parallel, most=self.most or math.inf), ""


class PowerPart(InputModel):
    """Power speedup s(k) = k^exponent."""

    form: Literal["power"]
    exponent: float = Field(ge=1e-6, le=2)
    most: Width | None = None

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """Return the speedup and a note, which is empty."""
        return PowerSpeedup(exponent=self.exponent, most=self.most or math.inf), ""


class LinearPart(InputModel):
    """Linear speedup s(k) = k up to ``most`` GPUs."""

    form: Literal["linear"]
    most: Width

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """Return the speedup and a note, which is empty."""
        return PowerSpeedup(exponent=1.0, most=self.most), ""


class TablePart(InputModel):
    """Table of measured speedups at some widths."""

    form: Literal["table"]
    gpus: tuple[Annotated[int, Field(ge=1, le=10**6)], ...] = Field(min_length=1, max_length=1024)
    speedup: tuple[Positive, ...] = Field(min_length=1, max_length=1024)

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """Return the speedup and a note, which is empty."""
        return TableSpeedup(gpus=self.gpus, speedups=self.speedup), ""


class MeasuredPart(InputModel):
    """Measured runs of a fine-tuning with the same total batch size on several numbers of GPUs (``--runs DIR``)."""

    form: Literal["measured"]
    model_name: str
    method: Literal["full", "lora", "gptq-lora"]
    gpu_model: str
    tokens_per_sample: int = Field(ge=1, le=10**9)
    batch_size: int = Field(ge=1, le=10**9)
    torch_dtype: str | None = None

    def build(self, runs: pd.DataFrame | None) -> tuple[Speedup, str]:
        """Return the speedup relative to the fewest GPUs measured, and notes on slower widths; `JobError` without ``runs``."""
        if runs is None:
            raise JobError(
                "a measured speedup without measured runs",
                expected="the folder that holds ft_throughput.csv",
                remedy="give it with --runs DIR",
            )
        return _measure_types(self, runs)


class DelayPart(InputModel):
    """Cost of delay: USD per hour, or a value that is lost after a deadline."""

    usd_per_hour: Positive | None = None
    deadline_hours: Positive | None = None
    value_usd: Positive | None = None
    decay: float = Field(1.5, gt=1, le=100)


class TypePart(InputModel):
    """Job type."""

    name: str = Field(min_length=1)
    rate_per_hour: Positive
    mean_hours: Positive
    sizes: Literal["exponential", "deterministic", "heavy-tailed"] = "exponential"
    speedup: AmdahlPart | PowerPart | LinearPart | TablePart | MeasuredPart = Field(discriminator="form")
    delay: DelayPart | None = None


class TypesFile(InputModel):
    """File of job types."""

    type: tuple[TypePart, ...] = Field(min_length=1, max_length=1000)


def read_types(path: Path, runs: pd.DataFrame | None = None) -> tuple[list[JobType], list[str]]:
    """Return the job types of a file, and notes on them.

    ``runs``: measured runs as returned by `slackwater.forecasting.configurations.runs.read_runs`. Raises
    `JobError` that names the file, the key and the expected value.
    """
    values = read_toml(path, "types file")
    try:
        parts = TypesFile.model_validate(values).type
    except ValidationError as error:
        key, _, message = error_parts(error.errors()[0])
        raise JobError(f"types file {path}: {key}: {message}", remedy=EXAMPLES["types file"]) from error
    built = [_build(part, str(path), runs) for part in parts]
    return [kind for kind, _ in built], [note for _, note in built if note]


def _build(part: TypePart, where: str, runs: pd.DataFrame | None) -> tuple[JobType, str]:
    try:
        speedup, note = part.speedup.build(runs)
        kind = JobType(
            name=part.name,
            rate_per_hour=part.rate_per_hour,
            mean_hours=part.mean_hours,
            speedup=speedup,
            delay=_delay(part),
        )
    except SlackwaterError as error:
        raise JobError(
            f"types file {where}: type {part.name!r}: {error.found}",
            expected=error.expected,
            remedy=error.remedy,
        ) from error
    return kind, f"{part.name}: {note}" if note else ""


def _delay(part: TypePart) -> Delay:
    stated = part.delay
    if stated is None:
        return PricedDelay()
    if stated.usd_per_hour is not None and stated.deadline_hours is None and stated.value_usd is None:
        return PricedDelay(price=stated.usd_per_hour, in_usd=True)
    if stated.usd_per_hour is None and stated.deadline_hours is not None and stated.value_usd is not None:
        return DeadlineDelay(
            deadline_hours=stated.deadline_hours,
            value_usd=stated.value_usd,
            gamma=stated.decay,
            size_distribution=SIZE_DISTRIBUTIONS[part.sizes],
        )
    given = ", ".join(sorted(stated.model_dump(exclude_none=True, exclude={"decay"}))) or "nothing"
    raise JobError(f"a delay that gives {given}", expected="usd_per_hour, or deadline_hours and value_usd")


def _measure_types(part: MeasuredPart, runs: pd.DataFrame) -> tuple[Speedup, str]:
    fixed = part.model_dump(exclude={"form", "torch_dtype"})
    chosen = runs
    for column, value in fixed.items():
        matching = chosen[chosen[column] == value]
        if matching.empty:
            known = sorted(chosen[column].unique().tolist())[:8]
            raise JobError(
                f"no measured run with {column} {value!r}",
                expected=f"one of {', '.join(str(gpu) for gpu in known)} with the values before it",
            )
        chosen = matching
    if part.torch_dtype is not None:
        chosen = chosen[chosen["torch_dtype"] == part.torch_dtype]
    rates = chosen.groupby("number_gpus")["tokens_per_second"].median().sort_index()
    if rates.empty:
        raise JobError(f"no measured run in {part.torch_dtype}", expected="another torch_dtype, or none")
    gpus, pace = rates.index.to_numpy(dtype=int), rates.to_numpy(dtype=float)
    useful = np.concatenate([[True], pace[1:] > np.maximum.accumulate(pace)[:-1]])
    notes = [f"speedup measured on {_words(gpus[useful])} GPUs"]
    if not useful.all():
        notes.append(f"{_words(gpus[~useful])} GPUs left out: no faster than fewer")
    if gpus[0] > 1:
        notes.append(f"mean_hours counts GPU-hours on {gpus[0]} GPUs, the fewest measured")
    speedups = float(gpus[0]) * pace[useful] / pace[0]
    return TableSpeedup(gpus=tuple(gpus[useful].tolist()), speedups=tuple(speedups.tolist())), "; ".join(
        notes
    )


def _words(values: Sequence[int] | np.ndarray) -> str:
    return ", ".join(str(int(value)) for value in values)


# ---
# Widths, baselines, and response time by budget (M8).

STREAMS, JOBS = 10, 3000  # Number of independent streams behind a simulated figure, and of jobs in each
#: Budgets on the frontier: their number, and the lowest and highest as multiples of the least budget.
POINTS, NEAREST, FURTHEST = 40, 1.02, 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Renting problem with the unit of its budget in words, and the seed of the simulations."""

    renting: Renting
    unit: str
    seed: int


def answer_of(question: Question, say: Callable[[str], None] = lambda text: None) -> dict[str, Any]:
    """Return the whole answer as plain values; raise `SettingsError` if the budget does not cover the load."""
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
        "loss_unit": "USD" if renting.types[0].delay.in_usd else "hours of response time",
        "multiplier": found.multiplier,
        "hours_saved_by_one_more_gpu": found.response_hours - one_more.response_hours,
        "loss_saved_by_one_more_gpu": found.loss_per_hour - one_more.loss_per_hour,
        "mixed": found.mixed,
        "types": [_type_row(rental) for rental in found.types],
        "baselines": baselines(question, found),
        "frontier": frontier_rows(renting),
    }


def _type_row(rental: TypeRental) -> dict[str, Any]:
    return {
        "type": rental.kind.name,
        "rate_per_hour": rental.kind.rate_per_hour,
        "load_gpus": rental.kind.load,
        "widths": [{"gpus": share.width, "probability": share.probability} for share in rental.shares],
        "response_hours": rental.response_hours,
        "gpus": rental.gpus,
        "spend": rental.spend,
        "loss_per_hour": rental.loss_per_hour,
    }


def widths_text(row: dict[str, Any]) -> str:
    """Return the widths of a type's row as text."""
    shares = row["widths"]
    if len(shares) == 1:
        return f"{shares[0]['gpus']:.4g}"
    return " or ".join(f"{share['gpus']:.4g} ({100 * share['probability']:.0f} %)" for share in shares)


def baselines(question: Question, found: Rental) -> list[dict[str, Any]]:
    """Return the optimum and its baselines for the same budget, in closed form or by simulation (M8.5)."""
    types, gpus = question.renting.types, question.renting.budget / question.renting.price
    cluster = int(gpus + 1e-9)
    return [
        _rental_row("fixed widths (optimal)", question, found),
        _compare_plans("equal widths", question, lambda: equal_widths(types, gpus)),
        _compare_plans("one GPU each", question, lambda: fixed_rental(types, 1.0, gpus)),
        _sharing_row(question, cluster),
        _fifo_row(question, cluster),
    ]


def _compare_plans(name: str, question: Question, make: Callable[[], Rental]) -> dict[str, Any]:
    try:
        return _rental_row(name, question, make())
    except SettingsError as error:
        return {"policy": name, "note": str(error)}


def _rental_row(name: str, question: Question, rental: Rental) -> dict[str, Any]:
    types = [rented.kind for rented in rental.types]
    simulated = _simulate(
        question, types, lambda stream, rng: play_widths(types, drawn_widths(rental, stream, rng), stream)
    )
    return {"policy": name, **_closed(rental), **_simulate_plans(simulated)}


def _closed(rental: Rental) -> dict[str, float]:
    """Return figures of a rental in closed form."""
    return {name: getattr(rental, name) for name in ("response_hours", "gpus", "loss_per_hour")}


def _simulate(
    question: Question, types: Sequence[JobType], play: Callable[[Stream, np.random.Generator], StreamMeans]
) -> Estimate:
    """Return the means over streams of jobs that ``play`` serves; raises `SettingsError` if the load is too high."""
    hours = JOBS / sum(kind.rate_per_hour for kind in question.renting.types)

    def play_one(rng: np.random.Generator) -> StreamMeans:
        return play(job_stream(types, hours=hours, sizes=Exponential(), rng=rng), rng)

    return estimate(play_one, streams=STREAMS, seed=question.seed)


def _simulate_plans(found: Estimate) -> dict[str, float]:
    return {
        "simulated_response_hours": found.response_hours,
        "response_error": found.response_error,
        "simulated_gpus": found.gpus,
        "gpus_error": found.gpus_error,
    }


def _sharing_row(question: Question, cluster: int) -> dict[str, Any]:
    types = question.renting.types
    name = f"cluster of {cluster}, equal sharing"
    try:
        simulated = _simulate(question, types, lambda stream, _: play_sharing(types, cluster, stream))
    except SettingsError as error:
        return {"policy": name, "note": error.found}
    return {"policy": name, **_simulate_plans(simulated)}


def _fifo_row(question: Question, cluster: int) -> dict[str, Any]:
    """Simulate first come, first served on groups of equal size, for the best of all sizes that keep up with the load."""
    types = question.renting.types
    best: tuple[Estimate, int] | None = None

    def of_width(width: int) -> Estimate:
        return _simulate(question, types, lambda stream, _: play_fifo(types, cluster, width, stream))

    # The largest group size for each number of groups: other sizes only waste GPUs.
    for width in sorted({cluster // groups for groups in range(1, cluster + 1)}):
        try:
            found = of_width(width)
        except SettingsError:
            continue
        if best is None or found.response_hours < best[0].response_hours:
            best = found, width
    name = f"cluster of {cluster}, FIFO"
    if best is None:
        return {"policy": name, "note": f"no size of group keeps up with the load on {cluster} GPUs"}
    return {"policy": name, "note": f"groups of {best[1]}, the best size", **_simulate_plans(best[0])}


def frontier_rows(renting: Renting) -> list[dict[str, Any]]:
    """Return response time and cost of delay by budget, for the optimum and for equal widths, from just above the load."""
    least = renting.least_budget
    furthest = max(FURTHEST * least, 1.5 * renting.budget)
    rows = []
    for found in budget_frontier(renting, np.geomspace(NEAREST * least, furthest, POINTS).tolist()):
        row = {key: getattr(found, key) for key in ("budget", "response_hours", "loss_per_hour", "spend")}
        gpus = found.budget / renting.price
        if fixed_rental(renting.types, 1.0, gpus).gpus <= gpus:
            equal = equal_widths(renting.types, gpus)
            row["equal_widths_response_hours"] = equal.response_hours
            row["equal_widths_loss_per_hour"] = equal.loss_per_hour
        rows.append(row)
    return rows


def market_row(price: EffectivePrice, overhead_hours: float) -> dict[str, float]:
    """Return an effective price as plain values."""
    return {
        "usd_per_gpu_hour": price.usd_per_gpu_hour,
        "list_usd_per_gpu_hour": price.on_demand_usd,
        "spot_usd_per_gpu_hour": price.spot_usd,
        "spot_share": price.spot_share,
        "fleet_gpus": price.gpus,
        "lost_to_restarts": price.lost,
        "restart_hours": overhead_hours,
    }


# ---
# The answer as plain values, and the price of a GPU in a followed market (M8.6).


def market_price(
    market: str,
    budget_usd: float,
    *,
    model: str | None,
    restart_hours: float,
    gpus: int | None = None,
    session: Session,
) -> tuple[dict[str, Any], EffectivePrice, list[str]]:
    """Return facts on a market, the effective price of a GPU-hour for the fleet that the budget pays for, and notes on old data.

    Availability and prices of the market are per instance of ``gpus`` GPUs (None: by the catalogue); they are converted to
    GPUs. Data known only after the session's time are not read, and nothing is stored. Raises `SettingsError` if the GPUs of an
    instance are unknown, `MarketError` if there is no on-demand price.
    """
    chosen = session.config
    with session.market_data() as store:
        when, own_end = session.moment(store)
        turn = query_turn(session, store, when, "rent", own_end=own_end, clock=now())
        followed = market_of(turn, market)
        each = _gpus_each(followed.market, gpus)
        histories, prepared = ready(turn, {followed: [followed.at]}, [model or chosen.planner])
        history = histories[followed].until(followed.at)
        (forecast,) = forecasts_of(history, prepared.batches[followed], settings=chosen)
    if note := history.on_demand_note:
        raise MarketError(
            f"{market}: the budget buys at an on-demand price, and there is none: {note}",
            remedy="state the price under [[on_demand]] in the settings, or give --price instead of --market",
        )
    losses = loss_rate(
        history.available * each, budget_usd / history.on_demand_usd * each, slot_hours=history.slot_hours
    )
    outlook = forecast_outlook(
        forecast, on_demand_usd=history.on_demand_usd, loss_rate=losses, gpus_per_instance=each
    )
    price = affordable(outlook, budget_usd, overhead_hours=restart_hours)
    facts = {
        "market": followed.key,
        "at": forecast.issued_at,
        "forecaster": forecast.predictor,
        "fallback": forecast.fallback,
        "horizon_hours": forecast.horizon * history.slot_hours,
        "gpus_per_instance": each,
        "losses_per_spot_gpu_hour": losses,
        "assumptions": list(history.assumptions),
    }
    old = turn.freshness.stale(history, followed.at)
    return facts, price, [f"STALE DATA: {old}"] if old else []


def _gpus_each(market: Market, stated: int | None) -> int:
    found = stated or catalogue_gpus(market)
    if found is None:
        raise SettingsError(
            f"how many GPUs an instance of {market.instance_type} has is not known",
            expected="its number of GPUs, in which rentals are counted and priced",
            remedy="give it with --gpus-per-instance N",
        )
    return found


#: Most GPUs that a budget may pay for: clusters of fixed size, the baselines, are simulated GPU by GPU.
MOST_GPUS = 100_000


def rental_answer(file: Path, request: RentalRequest, session: Session) -> dict[str, Any]:
    """Return widths, baselines and response time by budget, at a list price or at the price of a market."""
    if request.price is not None and request.market is not None:
        raise SettingsError("both --price and --market", expected="one of them: a list price, or a market's")
    types, notes = read_types(file, None if request.runs is None else _read_runs(request.runs))
    market: dict[str, Any] | None = None
    restart_hours = request.restart_minutes / 60.0
    if request.market is not None:
        market, price, old = market_price(
            request.market, request.budget, model=request.model, restart_hours=restart_hours, session=session,
            gpus=request.gpus_per_instance,
        )  # fmt: skip
        answer = answer_of(_question(request, types, price.paid_usd, price.lost), say)
        market |= market_row(price, restart_hours)
        market["at_list_price"] = _at_list_price(_question(request, types, price.on_demand_usd, 0.0))
        notes += old
        notes.append(
            "response times include restarts; the frontier holds the price of a GPU at this budget's: a larger fleet gets less spot"
        )
    else:
        answer = answer_of(_question(request, types, request.price or 1.0, 0.0), say)
    return answer | {"types_file": str(file), "market": market, "notes": notes}


def _read_runs(folder: Path) -> pd.DataFrame:
    from slackwater.forecasting.configurations.runs import read_runs

    return read_runs(folder)


def _question(request: RentalRequest, types: list[JobType], price: float, lost: float) -> Question:
    """Return the renting problem at ``price`` USD per GPU-hour, with jobs made longer by the share ``lost`` to restarts."""
    if not 0.0 < price < float("inf"):
        raise SettingsError(f"a price of {price} USD per GPU-hour", expected="a positive number")
    if request.budget / price > MOST_GPUS:
        raise SettingsError(
            f"a budget for {request.budget / price:,.0f} GPUs",
            expected=f"at most {MOST_GPUS:,}",
            remedy="give a smaller --budget, or a higher --price",
        )
    slowed = tuple(replace(kind, mean_hours=kind.mean_hours * (1.0 + lost)) for kind in types)
    money = request.price is not None or request.market is not None
    return Question(
        renting=Renting(types=slowed, budget=request.budget, whole=request.whole, price=price),
        unit="USD per hour" if money else "GPUs",
        seed=request.seed,
    )


def _at_list_price(question: Question) -> dict[str, Any]:
    """Return the results of the same budget without spot, or a note that the budget is too small."""
    try:
        found = question.renting.rental()
    except SettingsError as error:
        return {"response_hours": None, "loss_per_hour": None, "gpus": None, "note": str(error)}
    return {**_closed(found), "note": ""}
