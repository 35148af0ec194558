"""``rent``. What computes is loaded when the command is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flows.command import Answer, MarketName, Session, option


def rent(
    types: Annotated[Path, option("Types of jobs (TOML), as examples/types.toml.", metavar="TYPES")],
    /,
    *,
    budget: Annotated[float, option("GPUs on the mean; USD per hour with --price or --market.")],
    whole: Annotated[bool, option("Whole GPUs only.")] = False,
    price: Annotated[float | None, option("List price of a GPU-hour.", metavar="USD")] = None,
    market: MarketName = None,
    gpus_per_instance: Annotated[
        int | None,
        option("GPUs of an instance of the market (default: by the catalogue).", metavar="N", least=1),
    ] = None,
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

    With --market a GPU costs its share of an instance of that market, by what spot forecasts make of its price.
    """
    from flows.renting.page import rent_report
    from flows.renting.rent import RentalRequest, rental_answer

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
        gpus_per_instance=gpus_per_instance,
    )
    value = rental_answer(asked, session)
    if session.html is not None:
        value["html"] = str(session.html)
    return rent_report(value)
