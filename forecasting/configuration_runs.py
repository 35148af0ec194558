"""Measured fine-tuning runs, cleaned: what is read, what is left out, and why (M9.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from forecasting.configuration_facts import architecture, gpu
from forecasting.configuration_values import Configuration
from warehouse.errors import InputError, SourceFileError

RUNS_FILE: Final = "ft_throughput.csv"
#: What makes two runs repeats of one configuration: these never fall on both sides of a split.
IDENTITY: Final = (
    "model_name", "method", "gpu_model", "number_nodes", "number_gpus", "tokens_per_sample", "batch_size", "torch_dtype",
)  # fmt: skip
#: Columns of cleaned runs, and of runs that are reported later.
COLUMNS: Final = (*IDENTITY, "tokens_per_second", "source", "capped")
#: Passes over the data that a run of the wrong token count seems to have made.
_COUNTED_TIMES: Final = (3.5, 4.5)


def read_runs(folder: Path) -> pd.DataFrame:
    """Measured valid runs of ``folder``/ft_throughput.csv, one row per run, with the columns `COLUMNS`.

    Left out: rows flagged for their token account, and every other row that needs more than the GPU's peak FLOPs at about four
    passes (the same fault; `unphysical`). Divided by 4 they would fit no neighbour: at equal configurations the flagged float16
    rows come out 1.3 to 2.5 times the bfloat16 ones, the sound float16 rows 0.9 times. Their number is in ``attrs["left_out"]``.
    Unknown number formats become the method's usual one. Rows stopped by a time limit (``capped``) are kept: their rate is sound.
    Raises `SourceFileError` for a missing file, missing columns or values that cannot be.
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
    """Rows of about four passes whose matrix products alone need more FLOP/s than the GPU's peak.

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
    """The configuration of every row."""
    return [
        Configuration(
            model_name=model, method=method, gpu_model=device, number_nodes=int(nodes), number_gpus=int(count),
            tokens_per_sample=int(length), batch_size=int(batch), torch_dtype=dtype if isinstance(dtype, str) else None,
        )
        for model, method, device, nodes, count, length, batch, dtype in runs[list(IDENTITY)].itertuples(index=False, name=None)
    ]  # fmt: skip


def runs_frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Reported runs as a frame of `COLUMNS`; ``number_nodes``, ``torch_dtype``, ``source``, ``capped`` may be left out."""
    frame = pd.DataFrame([{"number_nodes": 1, "source": "reported", "capped": False, **row} for row in rows])
    if "torch_dtype" not in frame:
        frame["torch_dtype"] = None
    return checked_runs(frame)


def checked_runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Reported runs in the form of `read_runs`. Raises `InputError` for missing columns, unknown names, impossible rates."""
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


def _read_csv(path: Path) -> pd.DataFrame:
    needed = [*IDENTITY, "tokens_per_second", "passes", "source", "suspect_token_accounting"]
    try:
        frame = pd.read_csv(path)
    except OSError as error:
        raise SourceFileError(
            path,
            0,
            error.strerror or str(error),
            expected="the measured fine-tuning runs",
            remedy="name the folder that holds it",
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise SourceFileError(
            path, 0, f"no table: {error}", expected="a CSV file", remedy="fetch it again"
        ) from error
    missing = [name for name in needed if name not in frame]
    if missing:
        raise SourceFileError(
            path,
            1,
            f"columns {', '.join(missing)} are missing",
            expected=", ".join(needed),
            remedy="fetch the file again",
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
