"""``slackwater fit-configurations``: its options; heavy libraries are imported inside the command."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.command.options import Json


def fit_configurations(
    data: Annotated[
        Path,
        typer.Argument(metavar="DATA", help="Folder with the measured fine-tuning runs (ft_throughput.csv)."),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="Where the fitted model goes.")] = Path(
        "configurations.zip"
    ),
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of every split and of the trees.")] = 7,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast", help="One split and fewer models left out: a look in two minutes, not a result."
        ),
    ] = False,
    json: Json = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a report with plots to this file.")
    ] = None,
) -> None:
    """Learn throughput and validity of fine-tuning configurations from measured runs, and measure how good the predictions are.

    The model is kept in --out, which `slackwater fill` reads. Errors are of whole configurations, and of whole models, held out.
    """
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # before NumPy: two threads only spin on these matrices
    from flows.configurations.command import fit_configurations_command

    fit_configurations_command(data, out=out, seed=seed, fast=fast, as_json=json, html=html)
