"""Configuration knowledge (M9): from measured runs to the throughput and the validity of a way to run a fine-tuning.

`fit_configurations` reads the data, `ConfigurationModel` answers, `load_configurations` reads a kept one. The parts:
`configuration_values` (what goes in and comes out), `configuration_runs` (measured runs, cleaned), `configuration_throughput`
(law, Gaussian process, intervals), `configuration_validity` (rules, memory, classifier).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from forecasting.configuration_classifier import fit_classifier
from forecasting.configuration_facts import architecture, known_models
from forecasting.configuration_labels import label_configurations, read_labels
from forecasting.configuration_memory import calibrate_memory, memory_parts
from forecasting.configuration_runs import checked_runs, configurations_of, read_runs, runs_frame
from forecasting.configuration_throughput import ThroughputModel, fit_throughput
from forecasting.configuration_validity import ValidityModel, identity
from forecasting.configuration_values import METHODS, Configuration, Predicted, Validity

__all__ = [
    "METHODS", "Configuration", "ConfigurationModel", "Predicted", "Validity", "fit_configurations", "load_configurations",
    "read_runs", "runs_frame",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationModel:
    """What is known of configurations: predicts throughput and validity; a value, never changed in place."""

    throughput: ThroughputModel
    checks: ValidityModel
    seed: int

    @property
    def models(self) -> Mapping[str, float]:
        """Known models and their parameters in billions; any other is written ``name@7.2b``."""
        reported = set(self.throughput.runs["model_name"]) - set(known_models())
        return {name: architecture(name).params_b for name in (*known_models(), *sorted(reported))}

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """GPU models that were measured, most rows first."""
        return tuple(self.throughput.runs["gpu_model"].value_counts().index)

    def predict(self, configurations: Sequence[Configuration]) -> list[Predicted]:
        """Tokens per second of each configuration. Raises `InputError` for a model or GPU of which nothing is known."""
        return self.throughput.predict(configurations)

    def validity(self, configurations: Sequence[Configuration]) -> list[Validity]:
        """Whether each configuration runs, and by what it was decided."""
        return self.checks.judge(configurations)

    def with_runs(self, runs: pd.DataFrame) -> ConfigurationModel:
        """The model after it has seen reported runs (columns of `read_runs`; `runs_frame` makes them). Raises `InputError`."""
        throughput = self.throughput.with_runs(checked_runs(runs))
        ran = frozenset(map(identity, configurations_of(throughput.runs)))
        return replace(self, throughput=throughput, checks=replace(self.checks, ran=ran))

    def save(self, path: Path) -> None:
        """Keep the model in one file."""
        from forecasting.configuration_files import write_model

        write_model(self, path)


def fit_configurations(folder: Path, *, seed: int) -> ConfigurationModel:
    """Fit on the measurements and the validity labels of ``folder``. Raises `SourceFileError` for a missing or broken file."""
    runs, labels = read_runs(folder), read_labels(folder)
    labelled, p_valid = label_configurations(labels), labels["p_valid"].to_numpy()
    memory = calibrate_memory(memory_parts(labelled), p_valid)
    classifier = fit_classifier(labelled, p_valid, memory=memory, seed=seed)
    ran = frozenset(map(identity, configurations_of(runs)))
    return ConfigurationModel(
        throughput=fit_throughput(runs), checks=ValidityModel(classifier=classifier, ran=ran), seed=seed
    )


def load_configurations(path: Path) -> ConfigurationModel:
    """A model that was kept with `ConfigurationModel.save`. Raises `SourceFileError` for a damaged or newer file."""
    from forecasting.configuration_files import read_model

    return read_model(path)
