"""``rent``. What computes is loaded when the command is called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from flows.command import Answer, Session, option
from flows.command.session import MarketName
from flows.show.blocks import Block, Notes, Table


def rent(
    types: Annotated[Path, option("Types of jobs (TOML), as examples/types.toml.", metavar="TYPES")],
    /,
    *,
    budget: Annotated[float, option("GPUs on the mean; USD per hour with --price or --market.")],
    whole: Annotated[bool, option("Whole GPUs only.")] = False,
    price: Annotated[float | None, option("List price of a GPU-hour.", metavar="USD")] = None,
    market: MarketName = None,
    restart_minutes: Annotated[
        float, option("Lost by a job whenever a spot instance of it goes.", least=0)
    ] = 6.0,
    model: Annotated[str | None, option("Forecaster behind the spot price (with --market).")] = None,
    runs: Annotated[
        Path | None, option('Measured runs, for speedups of form "measured".', metavar="DIR")
    ] = None,
    seed: Annotated[int, option("Seed of the simulations.", least=0)] = 7,
    session: Session = Session(),
) -> Answer:
    """How many GPUs to rent for each job of a stream, so that jobs are done soonest within a budget; nothing queues.

    With --market a GPU is an instance of that market, and its price is what spot forecasts make of it.
    """
    from flows.renting.answer import RentalRequest, rental_answer
    from flows.renting.page import rent_page

    asked = RentalRequest(
        types=types,
        budget=budget,
        whole=whole,
        price=price,
        market=market,
        restart_hours=restart_minutes / 60.0,
        model=model,
        runs=runs,
        seed=seed,
    )
    value = rental_answer(asked, session)
    if session.html is not None:
        value["html"] = str(session.html)
    title = f"Renting for {value['budget']:g} {value['unit']}"
    return Answer(title=title, value=value, blocks=rent_blocks(value), page=lambda: rent_page(value))


def rent_blocks(answer: Mapping[str, Any]) -> list[Block]:
    """The answer as tables and sentences."""
    blocks: list[Block] = []
    from flows.renting.rent import widths_text

    loss = f"delay, {answer['loss_unit']} per hour"
    blocks.append(Table(
        f"Widths for {answer['budget']:g} {answer['unit']}",
        [{**row, "width": widths_text(row)} for row in answer["types"]],
        {
            "type": "type", "rate_per_hour": "jobs per hour", "load_gpus": "load, GPUs", "width": "GPUs a job",
            "response_hours": "response, h", "gpus": "GPUs held", "spend": answer["unit"], "loss_per_hour": loss,
        },
    ))  # fmt: skip
    blocks.append(Notes(sentences(answer)))
    blocks.append(Table(
        "Beside others (simulated: Poisson arrivals, exponential sizes)",
        answer["baselines"],
        {
            "policy": "policy", "response_hours": "response, h", "simulated_response_hours": "simulated",
            "response_error": "+-", "gpus": "GPUs", "simulated_gpus": "simulated", "loss_per_hour": loss, "note": "note",
        },
    ))  # fmt: skip
    blocks.append(
        Table(
            "At other arrival rates",
            [row for row in answer["sensitivity"] if row["arrivals_of"] == "all types"],
            {"factor": "arrivals, times", "response_hours": "response, h", "loss_per_hour": loss},
        )
    )
    blocks.append(
        Table(
            "Percent more for one percent more arrivals",
            answer["elasticity"],
            {"arrivals_of": "arrivals of", "response": "response", "loss": "delay"},
        )
    )
    if "html" in answer:
        blocks.append(f"Page: {answer['html']}")
    return blocks


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
