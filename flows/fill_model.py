"""Where the configuration knowledge of a command comes from: a fitted file, or the measured runs of a folder (M9.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from flows.measured_runs import MeasuredRun
from forecasting.configuration_runs import runs_frame
from forecasting.configurations import ConfigurationModel, fit_configurations, load_configurations
from warehouse.errors import InputError

#: Read from the working folder when it is there.
CONFIGURATIONS_FILE = "configurations.zip"
RUNS = "ft_throughput.csv"


def configuration_model(
    file: Path | None, data: Path | None, *, seed: int, say: Callable[[str], None]
) -> tuple[ConfigurationModel, str]:
    """The model and where it comes from: ``file``, else fitted on ``data``, else `CONFIGURATIONS_FILE` of the working
    folder.

    Raises `InputError` where there is none of them.
    """
    if file is not None:
        return load_configurations(file), str(file)
    for folder in (data / "finetune", data) if data is not None else ():
        if (folder / RUNS).is_file():
            say(f"fit configurations on {folder}")
            return fit_configurations(folder, seed=seed), f"fitted on {folder}"
    own = Path(CONFIGURATIONS_FILE)
    if own.is_file():
        return load_configurations(own), str(own)
    raise InputError(
        "no configuration knowledge: neither --configurations nor measured runs below --data",
        expected=f"a fitted file, a folder with {RUNS}, or {CONFIGURATIONS_FILE} in the working folder",
        remedy="`slackwater fit-configurations DATA` makes one",
    )


def with_measured(model: ConfigurationModel, runs: Sequence[MeasuredRun]) -> ConfigurationModel:
    """The model with the runs of reports fed back; itself if there are none."""
    return model.with_runs(runs_frame([run.run() for run in runs])) if runs else model
