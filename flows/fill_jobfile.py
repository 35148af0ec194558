"""Write a filled job as the TOML file that ``job add`` takes (M9.4)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.jobfile import JobRequest
from warehouse.errors import InputError


def write_job_file(request: JobRequest, path: Path, *, notes: Sequence[str]) -> None:
    """Write a placed request; ``notes`` become comments at its head. Raises `InputError` if the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(job_text(request, notes=notes), encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"job file {path}: {error.strerror}",
            expected="a writable file",
            remedy="choose another with --out",
        ) from error


def job_text(request: JobRequest, *, notes: Sequence[str] = ()) -> str:
    """A request as TOML; `flows.jobfile.read_request` reads the same request back."""
    values = request.model_dump(mode="json", exclude_none=True)
    for name, moment in (("start", request.start), ("deadline", request.deadline)):
        if moment is not None:
            values[name] = moment
    lines = [f"# {' '.join(note.split())}" for note in notes]
    lines += _pairs({key: value for key, value in values.items() if not isinstance(value, Mapping)})
    for key, value in values.items():
        if isinstance(value, Mapping):
            lines += ["", f"[{key}]", *_pairs(value)]
    return "\n".join(lines) + "\n"


def _pairs(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {_literal(value)}" for key, value in values.items()]


def _literal(value: Any) -> str:
    """A TOML literal; texts are JSON's, whose escapes TOML shares, but for the delete sign."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_literal(one) for one in value)}]"
    return str(value.isoformat())
