"""The ``rent`` command; modules that compute are imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from slackwater.flows.command import Answer, MarketName, Session, option, shared


@shared
class RentalRequest:
    """Budget, price and market of a rental."""

    budget: Annotated[
        float, option("GPUs on average; USD per hour with --price or --market.", least=1e-6, most=1e9)
    ]
    whole: Annotated[bool, option("Whole GPUs only.")] = False
    price: Annotated[
        float | None, option("List price of a GPU-hour.", metavar="USD", least=1e-6, most=1e6)
    ] = None
    market: MarketName = None
    gpus_per_instance: Annotated[
        int | None,
        option("GPUs of an instance of the market (default: by the catalogue).", metavar="N", least=1),
    ] = None
    restart_minutes: Annotated[
        float, option("Minutes that a job loses with each loss of a spot instance.", least=0, most=10_080)
    ] = 6.0
    model: Annotated[str | None, option("Forecaster behind the spot price (with --market).")] = None
    runs: Annotated[Path | None, option('Measured runs, for speedups of form "measured".', metavar="DIR")] = (
        None
    )
    seed: Annotated[int, option("Seed of the simulations.", least=0, most=2**63 - 1)] = 7


def rent(
    types: Annotated[
        Path, option("Types of jobs (TOML); `slackwater init --types` writes an example.", metavar="TYPES")
    ],
    /,
    *,
    request: RentalRequest,
    session: Session = Session(),
) -> Answer:
    """Compute how many GPUs to rent for each job of a stream, so that jobs finish soonest within a budget; jobs never queue.

    With --market the price of a GPU-hour is computed from spot forecasts of that market.
    """
    from slackwater.flows.renting.page import rent_report
    from slackwater.flows.renting.rent import rental_answer

    value = rental_answer(types, request, session)
    if session.html is not None:
        value["html"] = str(session.html)
    return rent_report(value)
