"""Command-line options and output elements shared by all experiments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from slackwater.flows.command import Output, option, shared
from slackwater.flows.show.blocks import Banner


@shared
class StudyOptions(Output):
    """Command-line options shared by all experiments."""

    data: Annotated[Path, option("Folder with prices.parquet and availability.parquet.", metavar="DIR")]
    fast: Annotated[bool, option("Fewer jobs and policies: a look in under a minute, not a result.")] = False
    seed: Annotated[int, option("Seed of everything drawn.", least=0, most=2**63 - 1)] = 7

    def workers(self, asked: int | None) -> int:
        """Return the number of processes: the requested number, else 1 with ``--fast``, else the number of cores.

        With SLACKWATER_RUNNER=dask replays run on the cluster instead.
        """
        from slackwater.flows.accuracy.units import cores

        return asked or (1 if self.fast else cores())


Processes = Annotated[
    int | None,
    option(
        "Processes to spread the work over (default: one a core).", name="--processes", least=1, most=1024
    ),
]


def quick_look(answer: Mapping[str, Any]) -> str:
    """Return the sentence ending that marks a result computed with ``--fast``, otherwise an empty string."""
    return "; a quick look, not a result" if answer["fast"] else ""


def with_bounds(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with the columns ``from`` and ``to``, the ends of its ``interval``."""
    return {**row, "from": row["interval"][0], "to": row["interval"][1]}


def joins(text: str) -> Banner:
    """Return the banner of a result that pairs the availability of a market with the prices of another market."""
    return Banner("Synthetic joins.", text)


def join_banner(answer: Mapping[str, Any]) -> Banner | None:
    """Return the same banner from ``synthetic_jobs`` and ``jobs`` of a result; None if all pairings were measured."""
    synthetic, jobs = answer["synthetic_jobs"], answer["jobs"]
    if not synthetic:
        return None
    return joins(f"In {synthetic} of {jobs} jobs one market's counts are joined with another's prices.")


def join_note(synthetic: int, jobs: int) -> str:
    """Return a note on the number of jobs with synthetic pairings, to be shown with all results of these jobs (M7)."""
    return (
        f"{synthetic} of {jobs} jobs are synthetic joins: one market's counts with another's prices (M7); "
        f"the other {jobs - synthetic} are measured pairs"
    )
