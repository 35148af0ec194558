"""``slackwater experiment cluster`` on the command line; heavy libraries are imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def cluster(
    data: Annotated[
        Path,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Folder of the fine-tuning measurements, or the one that holds `finetune/`.",
        ),
    ],
    fast: Annotated[
        bool, typer.Option("--fast", help="Few short streams: a look in under a minute, not a result.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of everything drawn.")] = 7,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report with plots to this file.")
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Processes to spread streams over (default: one a core)."),
    ] = None,
) -> None:
    """Completion times on a shared cluster of 64 GPUs: FIFO and a Sia-like scheduler, default and predicted configurations."""
    from flows.experiments.cluster.run import cluster_command

    cluster_command(data=data, seed=seed, fast=fast, as_json=json, html=html, processes=processes)
