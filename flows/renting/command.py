"""What ``slackwater rent`` does: read the types, price a GPU, rent, print (M8)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.command.answer import print_json, print_table, say_to_stderr
from flows.renting.file import read_types
from flows.renting.rent import Question, answer_of, market_row, widths_text
from optimization.renting.budget import JobType
from optimization.renting.simulation import Renting
from warehouse.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The options of ``rent`` that say what is rented."""

    types: Path
    budget: float
    whole: bool
    price: float | None
    market: str | None
    restart_hours: float
    model: str | None
    runs: Path | None
    seed: int


def rent_command(
    asked: Asked,
    *,
    data: Path | None,
    db: Path,
    at: str | None,
    settings: Path | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """``slackwater rent``: an answer as tables, as JSON, and as a page."""
    if asked.price is not None and asked.market is not None:
        raise SettingsError("both --price and --market", expected="one of them: a list price, or a market's")
    types, notes = _types(asked)
    market: dict[str, Any] | None = None
    if asked.market is not None:
        from flows.renting.market import market_price

        market, price = market_price(
            asked.market, asked.budget, model=asked.model, restart_hours=asked.restart_hours,
            where=(data, db, at, settings),
        )  # fmt: skip
        answer = answer_of(_question(asked, types, price.paid_usd, price.lost), say_to_stderr)
        market |= market_row(price, asked.restart_hours)
        market["at_list_price"] = _at_list_price(_question(asked, types, price.on_demand_usd, 0.0))
        notes.append(
            "response times include restarts; the frontier holds the price of a GPU at this budget's: a larger fleet gets less spot"
        )
    else:
        answer = answer_of(_question(asked, types, asked.price or 1.0, 0.0), say_to_stderr)
    answer |= {"types_file": str(asked.types), "market": market, "notes": notes}
    if html is not None:
        from flows.renting.page import write_rent_page

        answer["html"] = str(write_rent_page(answer, html))
    if as_json:
        print_json(answer)
    else:
        print_rent(answer)


def _types(asked: Asked) -> tuple[list[JobType], list[str]]:
    if asked.runs is None:
        return read_types(asked.types)
    from forecasting.configurations.runs import read_runs

    return read_types(asked.types, read_runs(asked.runs))


def _question(asked: Asked, types: list[JobType], price: float, lost: float) -> Question:
    """``price`` is what a GPU-hour held costs; ``lost`` is the share by which restarts make jobs longer."""
    if not 0.0 < price < float("inf"):
        raise SettingsError(f"a price of {price} USD per GPU-hour", expected="a positive number")
    slowed = tuple(replace(kind, mean_hours=kind.mean_hours * (1.0 + lost)) for kind in types)
    money = asked.price is not None or asked.market is not None
    return Question(
        renting=Renting(types=slowed, budget=asked.budget, whole=asked.whole, price=price),
        unit="USD per hour" if money else "GPUs",
        seed=asked.seed,
    )


def _at_list_price(question: Question) -> dict[str, Any]:
    """The same budget without spot, or why it is too small."""
    try:
        found = question.renting.rental()
    except SettingsError as error:
        return {"response_hours": None, "loss_per_hour": None, "gpus": None, "note": str(error)}
    return {
        "response_hours": found.response_hours,
        "loss_per_hour": found.loss_per_hour,
        "gpus": found.gpus,
        "note": "",
    }


def print_rent(answer: Mapping[str, Any]) -> None:
    """The answer as tables and sentences."""
    loss = f"delay, {answer['loss_unit']} per hour"
    print_table(
        f"Widths for {answer['budget']:g} {answer['unit']}",
        [{**row, "width": widths_text(row)} for row in answer["types"]],
        {
            "type": "type", "rate_per_hour": "jobs per hour", "load_gpus": "load, GPUs", "width": "GPUs a job",
            "response_hours": "response, h", "gpus": "GPUs held", "spend": answer["unit"], "loss_per_hour": loss,
        },
    )  # fmt: skip
    for line in sentences(answer):
        print(f"* {line}")
    print_table(
        "Beside others (simulated: Poisson arrivals, exponential sizes)",
        answer["baselines"],
        {
            "policy": "policy", "response_hours": "response, h", "simulated_response_hours": "simulated",
            "response_error": "+-", "gpus": "GPUs", "simulated_gpus": "simulated", "loss_per_hour": loss, "note": "note",
        },
    )  # fmt: skip
    print_table(
        "At other arrival rates",
        [row for row in answer["sensitivity"] if row["arrivals_of"] == "all types"],
        {"factor": "arrivals, times", "response_hours": "response, h", "loss_per_hour": loss},
    )
    print_table(
        "Percent more for one percent more arrivals",
        answer["elasticity"],
        {"arrivals_of": "arrivals of", "response": "response", "loss": "delay"},
    )
    if "html" in answer:
        print(f"Page: {answer['html']}")


def sentences(answer: Mapping[str, Any]) -> list[str]:
    """What the figures mean, in words."""
    unit, market = answer["unit"], answer["market"]
    lines = [
        f"A job takes {answer['response_hours']:.3g} h on the mean, and {answer['gpus']:.4g} GPUs are held; "
        f"{answer['spend']:.4g} of {answer['budget']:g} {unit} is spent."
        + ("" if answer["multiplier"] > 0 else " More budget would be of no use.")
    ]
    if answer["mixed"]:
        lines.append(
            f"{answer['mixed']} mixes two widths: a job that arrives gets either by chance, as the table says."
        )
    saved = answer["hours_saved_by_one_more_gpu"]
    what = (
        f"and {answer['loss_saved_by_one_more_gpu']:.3g} USD per hour of delay"
        if answer["loss_unit"] == "USD"
        else ""
    )
    lines.append(
        f"One more GPU would save {saved:.3g} h a job {what}".rstrip()
        + f"; the multiplier is {answer['multiplier']:.4g}: what the last {unit_words(unit)} of budget saves per hour, "
        f"in {answer['loss_unit']}."
    )
    if market:
        lines += _market_sentences(answer, market)
    return lines + list(answer["notes"])


def _market_sentences(answer: Mapping[str, Any], market: Mapping[str, Any]) -> list[str]:
    lines = [
        f"In {market['market']} at {market['at']} a GPU-hour of work is forecast to cost {market['usd_per_gpu_hour']:.3g} USD "
        f"({market['list_usd_per_gpu_hour']:.3g} on demand): {market['spot_share']:.0%} of {market['fleet_gpus']:.3g} GPUs on spot "
        f"over {market['horizon_hours']:g} h, {market['lost_to_restarts']:.1%} more time for restarts."
    ]
    listed = market["at_list_price"]
    lines.append(
        f"At list price the same budget gives {listed['response_hours']:.3g} h a job on {listed['gpus']:.3g} GPUs."
        if listed["response_hours"] is not None
        else f"At list price: {listed['note']}."
    )
    if market["assumptions"]:
        lines.append("Synthetic, because assumed: " + "; ".join(market["assumptions"]) + ".")
    return lines


def unit_words(unit: str) -> str:
    """One unit of a budget.

    >>> unit_words("GPUs"), unit_words("USD per hour")
    ('GPU', 'USD per hour')
    """
    return "GPU" if unit == "GPUs" else unit
