"""Read the small TOML files that a user writes; nothing heavy is imported."""

from __future__ import annotations

import tomllib
from pathlib import Path

from warehouse.errors import JobError

#: What a job file should be.
VALID_JOB = "valid TOML, as in examples/llama-8b-lora.toml"


def read_toml(path: Path, kind: str, *, expected: str, remedy: str = "") -> dict[str, object]:
    """Return the values of a TOML file; raises `JobError` that names its ``kind``, such as "job file", and the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{kind} {path}: {error.strerror}", remedy="name a readable TOML file") from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, a number or brackets without end
        raise JobError(f"{kind} {path}: {error}", expected=expected, remedy=remedy) from error


def names_file(job: str) -> bool:
    """Return whether what a user calls a job is its job file; else it is the name of a stored job."""
    return job.endswith(".toml") or Path(job).exists()
