"""What every experiment is told on the command line, and what all say alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from flows.command import Output, option, shared
from flows.show.blocks import Banner


@shared
class StudyOptions(Output):
    """What every experiment is told."""

    data: Annotated[Path, option("Folder with prices.parquet and availability.parquet.", metavar="DIR")]
    fast: Annotated[bool, option("Fewer jobs and policies: a look in under a minute, not a result.")] = False
    seed: Annotated[int, option("Seed of everything drawn.", least=0, most=2**63 - 1)] = 7

    def workers(self, asked: int | None) -> int:
        """Processes to use: those asked for, else one for a quick look and one a core for a result."""
        from flows.accuracy.units import cores

        return asked or (1 if self.fast else cores())


Processes = Annotated[
    int | None,
    option(
        "Processes to spread the work over (default: one a core).", name="--processes", least=1, most=1024
    ),
]


def quick_look(answer: Mapping[str, Any]) -> str:
    """The end of a sentence on an answer that was made with ``--fast``."""
    return "; a quick look, not a result" if answer["fast"] else ""


def joins(text: str) -> Banner:
    """The banner of an answer in which counts of one market are joined with prices of another."""
    return Banner("Synthetic joins.", text)


def join_banner(answer: Mapping[str, Any]) -> Banner | None:
    """The same from ``synthetic_jobs`` and ``jobs`` of an answer; None where all were measured."""
    synthetic, jobs = answer["synthetic_jobs"], answer["jobs"]
    if not synthetic:
        return None
    return joins(f"In {synthetic} of {jobs} jobs one market's counts are joined with another's prices.")
