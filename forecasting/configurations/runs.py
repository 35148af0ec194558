"""Measured fine-tuning runs, cleaned, and the distance of a configuration from them (M9.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.forecasting.configurations.facts import Configuration, architecture, gpu
from slackwater.warehouse.errors import InputError, SourceFileError

RUNS_FILE: Final = "ft_throughput.csv"
#: Columns that identify a configuration: repeats of a configuration are never on both sides of a split.
IDENTITY: Final = (
    "model_name", "method", "gpu_model", "number_nodes", "number_gpus", "tokens_per_sample", "batch_size", "torch_dtype",
)  # fmt: skip
#: Columns of cleaned runs, and of runs reported later.
COLUMNS: Final = (*IDENTITY, "tokens_per_second", "source", "capped")
_COUNTED_TIMES: Final = (3.5, 4.5)  # Range of passes over the data in runs with a wrong token count


def read_runs(folder: Path) -> pd.DataFrame:
    """Read the measured valid runs of ``folder``/ft_throughput.csv, one row per run, with the columns `COLUMNS`.

    Excluded are rows flagged for their token account, and all other rows that need more than the GPU's peak FLOPs at about four
    passes (the same fault; `unphysical`). Dividing them by 4 would not correct them: at equal configurations the flagged
    float16 rows are then 1.3 to 2.5 times the bfloat16 rows, the valid float16 rows 0.9 times. Their number is in
    ``attrs["left_out"]``. Unknown number formats are replaced by the method's usual format. Rows stopped by a time limit
    (``capped``) are included, since their rate is valid. Raises `SourceFileError` for a missing file, missing columns or
    impossible values.
    """
    frame = _read_csv(folder / RUNS_FILE)
    sound = (frame["suspect_token_accounting"] == 0) & ~unphysical(frame)
    runs = frame[sound].copy()
    usual = pd.Series(np.where(runs["method"] == "gptq-lora", "float16", "bfloat16"), index=runs.index)
    runs["torch_dtype"] = runs["torch_dtype"].astype(object).where(runs["torch_dtype"].notna(), usual)
    runs["capped"] = runs["passes"] < 0.999
    runs = runs[list(COLUMNS)].reset_index(drop=True)
    runs.attrs["left_out"] = int((~sound).sum())
    return runs


def unphysical(frame: pd.DataFrame) -> pd.Series:
    """Return the rows of about four passes whose matrix products require more FLOP/s than the GPU's peak.

    A token costs at least 4 FLOP per parameter with an adapter and 6 without (forward 2, backward 2 or 4).
    """
    flop = np.where(frame["method"] == "full", 6.0, 4.0) * [
        architecture(m).active_b for m in frame["model_name"]
    ]
    peak = np.array([gpu(g).tflops for g in frame["gpu_model"]]) * 1e3
    needed = flop * frame["tokens_per_second"] / frame["number_gpus"]
    beyond: pd.Series = (needed > peak) & frame["passes"].between(*_COUNTED_TIMES)
    return beyond


def configurations_of(runs: pd.DataFrame) -> list[Configuration]:
    """Return the configuration of every row."""
    return [
        Configuration(
            model_name=model, method=method, gpu_model=device, number_nodes=int(nodes), number_gpus=int(count),
            tokens_per_sample=int(length), batch_size=int(batch), torch_dtype=dtype if isinstance(dtype, str) else None,
        )
        for model, method, device, nodes, count, length, batch, dtype in runs[list(IDENTITY)].itertuples(index=False, name=None)
    ]  # fmt: skip


def runs_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return reported runs as a frame of `COLUMNS`; nodes, ``torch_dtype``, ``source`` and ``capped`` are optional."""
    frame = pd.DataFrame([{"number_nodes": 1, "source": "reported", "capped": False, **row} for row in rows])
    if "torch_dtype" not in frame:
        frame["torch_dtype"] = None
    return checked_runs(frame)


def checked_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return reported runs in the form of `read_runs`; raises `InputError` for missing columns, names or absurd rates."""
    missing = [name for name in COLUMNS if name not in frame]
    if missing:
        raise InputError(
            f"reported runs without {', '.join(missing)}",
            expected=f"the columns {', '.join(COLUMNS)}",
            remedy="add them",
        )
    rate = pd.to_numeric(frame["tokens_per_second"], errors="coerce").to_numpy(dtype=float)
    if not (np.isfinite(rate) & (rate > 0)).all():
        raise InputError(
            "a reported run whose tokens_per_second is not a positive number", expected="tokens per second over all GPUs",
            remedy="leave the run out",
        )  # fmt: skip
    runs = frame[list(COLUMNS)].reset_index(drop=True)
    configurations = configurations_of(runs)
    for configuration in configurations:
        architecture(configuration.model_name)
        gpu(configuration.gpu_model)
    return runs.assign(torch_dtype=[c.dtype for c in configurations], tokens_per_second=rate)


def read_published(
    path: Path, read: Callable[[Path], pd.DataFrame], columns: Sequence[str], *, expected: str, form: str
) -> pd.DataFrame:
    """Return a published table; raises `SourceFileError` if it is missing, is not in its ``form``, or lacks a column."""
    try:
        frame = read(path)
    except OSError as error:
        found, remedy = error.strerror or str(error), "name the folder that holds it"
        raise SourceFileError(path, 0, found, expected=expected, remedy=remedy) from error
    except ValueError as error:  # no table, no text, or an empty file
        raise SourceFileError(
            path, 0, f"no table: {error}", expected=form, remedy="fetch it again"
        ) from error
    if missing := [name for name in columns if name not in frame]:
        raise SourceFileError(
            path,
            1,
            f"columns {', '.join(missing)} are missing",
            expected=", ".join(columns),
            remedy="fetch the file again",
        )
    return frame


def _read_csv(path: Path) -> pd.DataFrame:
    needed = [*IDENTITY, "tokens_per_second", "passes", "source", "suspect_token_accounting"]
    frame = read_published(
        path, pd.read_csv, needed, expected="the measured fine-tuning runs", form="a CSV file"
    )
    rate = pd.to_numeric(frame["tokens_per_second"], errors="coerce")
    bad = np.flatnonzero(~(rate > 0).to_numpy())
    if bad.size:
        found = frame["tokens_per_second"].iloc[bad[0]]
        raise SourceFileError(
            path,
            int(bad[0]) + 2,
            f"tokens_per_second is {found}",
            expected="a positive number",
            remedy="leave the row out",
        )
    return frame


# ---
# Distance of a configuration from the measured range: in sentences, and as a number that widens its interval (ours).

#: Relative widening of the interval of log throughput per doubling outside the measured range.
_PER_DOUBLING: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranges:
    """Measured ranges: minimum and maximum of every number, names, and the largest number of GPUs per GPU model."""

    spans: dict[str, tuple[float, float]]
    models: frozenset[str]
    gpus: frozenset[str]
    groups: frozenset[tuple[str, str, str]]
    most_gpus: dict[str, int]

    def distance(self, c: Configuration) -> float:
        """Return the relative widening of the interval: half its width per doubling outside any measured range."""
        return _PER_DOUBLING * sum(amount for amount, _ in self._excesses(c))

    def sentences(self, c: Configuration) -> tuple[str, ...]:
        """Return a sentence for each way in which ``c`` lies outside the data; empty inside."""
        out: list[str] = []
        shape = architecture(c.model_name)
        if c.gpu_model not in self.gpus:
            out.append(
                f"{c.gpu_model} was never measured ({len(self.gpus)} GPU models were): its data sheet stands in"
            )
        if c.model_name not in self.models:
            guessed = ", of which only the size is known" if shape.assumed else ""
            near = min(self.models, key=lambda name: abs(log2(architecture(name).params_b / shape.params_b)))
            out.append(
                f"{c.model_name} ({shape.params_b:.3g} billion parameters{guessed}) was never measured; "
                f"the nearest in size is {near} ({architecture(near).params_b:.3g} billion)"
            )
        elif c.gpu_model in self.gpus and (c.model_name, c.method, c.gpu_model) not in self.groups:
            out.append(f"{c.model_name} was never measured with {c.method} on {c.gpu_model}")
        out.extend(sentence for _, sentence in self._excesses(c))
        if shape.max_tokens is not None and c.tokens_per_sample > shape.max_tokens:
            out.append(
                f"{c.tokens_per_sample} tokens per sample are {c.tokens_per_sample / shape.max_tokens:.3g} times "
                f"the {shape.max_tokens} that {c.model_name} was trained for"
            )
        return tuple(out)

    def _excesses(self, c: Configuration) -> list[tuple[float, str]]:
        """Return (doublings outside, sentence) for every number outside its range."""
        out: list[tuple[float, str]] = []
        for name, value in _numbers(c).items():
            low, high = self.spans[name]
            amount = max(log2(low / value), log2(value / high))
            if amount > 1e-9:
                edge, word = (low, "below") if value < low else (high, "above")
                ratio = max(value / high, low / value)
                out.append(
                    (
                        amount,
                        f"{name} {value:g} is {word} all measured ({low:g} to {high:g}), by a factor of {ratio:.3g} from {edge:g}",
                    )
                )
        most = self.most_gpus.get(c.gpu_model)
        if most is not None and c.number_gpus > most and c.number_gpus <= self.spans["number of GPUs"][1]:
            out.append(
                (
                    log2(c.number_gpus / most),
                    f"{c.number_gpus} GPUs are more than the {most} measured on {c.gpu_model}",
                )
            )
        return out


def ranges_of(configurations: Sequence[Configuration]) -> Ranges:
    """Return the ranges of measured configurations."""
    numbers = [_numbers(c) for c in configurations]
    most: dict[str, int] = {}
    for c in configurations:
        most[c.gpu_model] = max(most.get(c.gpu_model, 0), c.number_gpus)
    return Ranges(
        spans={name: (min(n[name] for n in numbers), max(n[name] for n in numbers)) for name in numbers[0]},
        models=frozenset(c.model_name for c in configurations),
        gpus=frozenset(c.gpu_model for c in configurations),
        groups=frozenset((c.model_name, c.method, c.gpu_model) for c in configurations),
        most_gpus=most,
    )


def _numbers(c: Configuration) -> dict[str, float]:
    return {
        "billions of parameters": architecture(c.model_name).params_b,
        "number of GPUs": c.number_gpus,
        "number of nodes": c.number_nodes,
        "tokens per sample": c.tokens_per_sample,
        "samples per GPU": c.batch_size / c.number_gpus,
    }
