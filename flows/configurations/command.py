"""``slackwater fit-configurations``: fit, keep, measure, print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.command.answer import print_json, print_table, say_to_stderr
from flows.configurations.answer import EVALUATIONS, measured_answer, steps
from flows.experiments.runner import job_progress
from forecasting.configurations.model import fit_configurations


def fit_configurations_command(
    data: Path, *, out: Path, seed: int, fast: bool, as_json: bool, html: Path | None
) -> None:
    """Fit on ``data``, keep the model in ``out``, measure it and print tables or one JSON object."""
    say_to_stderr(f"fit on {data}")
    model = fit_configurations(data, seed=seed)
    model.save(out)
    say_to_stderr(f"kept in {out}; measuring it")
    with job_progress("measuring") as tell:
        total, done = steps(model, fast=fast), 0

        def one_more() -> None:
            nonlocal done
            done += 1
            tell(done, total)

        answer = measured_answer(model, data, seed=seed, effort=EVALUATIONS[fast], tell=one_more)
    answer["model"] = str(out)
    if html is not None:
        from flows.configurations.page import write_configurations_page

        answer["report"] = str(write_configurations_page(answer, html))
    if as_json:
        print_json(answer)
    else:
        print_answer(answer)


def print_answer(answer: Mapping[str, Any]) -> None:
    """The tables a person reads; shares are percent there."""
    columns = {
        "what": "Tokens/s predicted for",
        "mdape": "MdAPE %",
        "spread": "spread",
        "mape": "MAPE %",
        "coverage": "covered %",
    }
    print_table("Throughput, whole configurations held out", answer["summary"], columns)
    errors = {"mdape": "MdAPE %", "mape": "MAPE %", "coverage": "covered %", "width": "high/low"}
    print_table(
        "By method and GPU",
        answer["by_group"],
        {"method": "Method", "gpu_model": "GPU", "rows": "Rows", **errors},
    )
    print_table("By source", answer["by_source"], {"source": "Source", "rows": "Rows", **errors})
    print_table(
        "Learning curve", answer["learning_curve"], {"rows": "Rows learned", "spread": "spread", **errors}
    )
    print_table(
        "One model left out", answer["models_left_out"], {"model_name": "Model", "rows": "Rows", **errors}
    )
    print_table(
        "Validity on the published classifier's labels (SYNTHETIC)",
        answer["validity"],
        {
            "held_out": "Held out", "classifier": "Error %", "memory": "Memory model alone %",
            "invalid_said_valid": "invalid said valid %", "valid_said_invalid": "valid said invalid %",
        },
    )  # fmt: skip
    print_table(
        "Measured (valid) runs said to be valid", answer["measured_valid"],
        {"method": "Method", "runs": "Runs", "said_valid": "said valid %"},
    )  # fmt: skip
    shown = [row for row in answer["failure_rates"] if row["factor"] in ("method", "gpu_model")]
    print_table(
        "Failure rates of the published experiments, by the memory model on the rebuilt grid", shown,
        {
            "rate": "Rate", "level": "Level", "published": "Published %", "reproduced": "Reproduced %",
            "difference": "Points apart",
        },
    )  # fmt: skip
    for note in answer["notes"]:
        print(f"- {note}")
    print(f"Model: {answer['model']}" + (f"; report: {answer['report']}" if "report" in answer else ""))
