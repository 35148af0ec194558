"""Reader for small TOML files written by users; imports nothing heavy."""

from __future__ import annotations

import tomllib
from pathlib import Path

from slackwater.warehouse.errors import JobError

#: Expected form of a job file, for error messages.
VALID_JOB = "valid TOML, as in examples/llama-8b-lora.toml"


def read_toml(path: Path, kind: str, *, expected: str, remedy: str = "") -> dict[str, object]:
    """Return the values of a TOML file; raises `JobError` with the file and its ``kind``, such as "job file"."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{kind} {path}: {error.strerror}", remedy="name a readable TOML file") from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # invalid TOML or UTF-8, too long a number, too deep nesting
        raise JobError(f"{kind} {path}: {error}", expected=expected, remedy=remedy) from error


def names_file(job: str) -> bool:
    """Return whether the text identifies a job file; otherwise it is the name of a stored job."""
    return job.endswith(".toml") or Path(job).exists()
