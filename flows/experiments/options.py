"""What every experiment is told on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flows.command import Output, option
from flows.command.session import shared


@shared
class StudyOptions(Output):
    """What every experiment is told."""

    data: Annotated[Path, option("Folder with prices.parquet and availability.parquet.", metavar="DIR")]
    fast: Annotated[bool, option("Fewer jobs and policies: a look in under a minute, not a result.")] = False
    seed: Annotated[int, option("Seed of everything drawn.", least=0)] = 7


Processes = Annotated[
    int | None,
    option("Processes to spread the work over (default: one a core).", name="--processes", least=1),
]
