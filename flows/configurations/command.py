"""``fit-configurations``: fit, keep, measure. What computes is loaded when the command is called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from flows.command import Answer, Output, option
from flows.command.progress import progress, say
from flows.show.blocks import Block, Notes, Table


def fit_configurations(
    data: Annotated[
        Path, option("Folder with the measured fine-tuning runs (ft_throughput.csv).", metavar="DATA")
    ],
    /,
    *,
    out: Annotated[Path, option("Where the fitted model goes.", metavar="FILE")] = Path("configurations.zip"),
    seed: Annotated[int, option("Seed of every split and of the trees.", least=0)] = 7,
    fast: Annotated[
        bool, option("One split and fewer models left out: a look in two minutes, not a result.")
    ] = False,
    output: Output = Output(),
) -> Answer:
    """Learn throughput and validity of fine-tuning configurations from measured runs, and measure how good the predictions are.

    The model is kept in --out, which `slackwater fill` reads. Errors are of whole configurations, and of whole models, held out.
    """
    # Before NumPy is loaded: two threads only spin on these matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from flows.configurations.answer import EVALUATIONS, measured_answer, steps
    from flows.configurations.page import configurations_page
    from forecasting.configurations.model import fit_configurations as fit

    say(f"fit on {data}")
    model = fit(data, seed=seed)
    model.save(out)
    say(f"kept in {out}; measuring it")
    with progress("measuring", steps(model, fast=fast)) as tell:
        done = 0

        def one_more() -> None:
            nonlocal done
            done += 1
            tell(done)

        value = measured_answer(model, data, seed=seed, effort=EVALUATIONS[fast], tell=one_more)
    value["model"] = str(out)
    if output.html is not None:
        value["report"] = str(output.html)
    return Answer(
        title="Configuration knowledge",
        value=value,
        blocks=answer_blocks(value),
        page=lambda: configurations_page(value),
    )


def answer_blocks(answer: Mapping[str, Any]) -> list[Block]:
    """The tables a person reads; shares are percent there."""
    blocks: list[Block] = []
    columns = {
        "what": "Tokens/s predicted for",
        "mdape": "MdAPE %",
        "spread": "spread",
        "mape": "MAPE %",
        "coverage": "covered %",
    }
    blocks.append(Table("Throughput, whole configurations held out", answer["summary"], columns))
    errors = {"mdape": "MdAPE %", "mape": "MAPE %", "coverage": "covered %", "width": "high/low"}
    blocks.append(
        Table(
            "By method and GPU",
            answer["by_group"],
            {"method": "Method", "gpu_model": "GPU", "rows": "Rows", **errors},
        )
    )
    blocks.append(Table("By source", answer["by_source"], {"source": "Source", "rows": "Rows", **errors}))
    blocks.append(
        Table(
            "Learning curve", answer["learning_curve"], {"rows": "Rows learned", "spread": "spread", **errors}
        )
    )
    blocks.append(
        Table(
            "One model left out", answer["models_left_out"], {"model_name": "Model", "rows": "Rows", **errors}
        )
    )
    blocks.append(Table(
        "Validity on the published classifier's labels (SYNTHETIC)",
        answer["validity"],
        {
            "held_out": "Held out", "classifier": "Error %", "memory": "Memory model alone %",
            "invalid_said_valid": "invalid said valid %", "valid_said_invalid": "valid said invalid %",
        },
    ))  # fmt: skip
    blocks.append(Table(
        "Measured (valid) runs said to be valid", answer["measured_valid"],
        {"method": "Method", "runs": "Runs", "said_valid": "said valid %"},
    ))  # fmt: skip
    shown = [row for row in answer["failure_rates"] if row["factor"] in ("method", "gpu_model")]
    blocks.append(Table(
        "Failure rates of the published experiments, by the memory model on the rebuilt grid", shown,
        {
            "rate": "Rate", "level": "Level", "published": "Published %", "reproduced": "Reproduced %",
            "difference": "Points apart",
        },
    ))  # fmt: skip
    blocks.append(Notes(answer["notes"]))
    blocks.append(
        f"Model: {answer['model']}" + (f"; report: {answer['report']}" if "report" in answer else "")
    )
    return blocks
