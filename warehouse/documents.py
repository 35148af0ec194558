"""Small documents: stored JSON, which is not trusted, TOML files of users, and data of the package; all light."""

from __future__ import annotations

import json
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from slackwater.warehouse.errors import InputError, JobError


def why_unreadable(text: str, form: type = dict) -> str:
    """Return why a text is not a JSON object (or list, by ``form``); "" if it is.

    >>> why_unreadable("{"), why_unreadable("[]"), why_unreadable('{"a": 1}')
    ('no JSON', 'a JSON list where an object is expected', '')
    """
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(found, form):
        words = "object" if isinstance(found, dict) else "list" if isinstance(found, list) else "value"
        return f"a JSON {words} where {'an object' if form is dict else 'a list'} is expected"
    return ""


def read_object(text: str | None, *required: str) -> dict[str, Any] | None:
    """Return the JSON object in a stored text; {} for an empty text, None if it is no object or lacks a ``required`` key."""
    try:
        found = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and all(key in found for key in required) else None


def read_list(text: str | None) -> list[Any]:
    """Return the JSON list in a stored text; [] for an empty text or any other content."""
    try:
        found = json.loads(text) if text else []
    except (ValueError, RecursionError):
        return []
    return found if isinstance(found, list) else []


# ---
# TOML files written by users.

#: Kinds of files that a person writes -> command that writes an example.
EXAMPLES = {
    "job file": "`slackwater init --job` writes a job file with every key",
    "request file": "`slackwater init --request` writes a request with every key",
    "types file": "`slackwater init --types` writes an example",
    "settings file": "`slackwater init` writes all settings with their meanings",
    "prior file": "make it with `slackwater experiment selection --data DIR --prior FILE`",
}


def read_toml(path: Path, kind: str, *, error: type[InputError] = JobError, note: str = "") -> dict[str, Any]:
    """Return the values of a TOML file; raises ``error`` with its kind, its path, ``note``, and the example in `EXAMPLES`."""
    found, example = f"{kind} {path}{note}", EXAMPLES.get(kind, "")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as why:
        remedy = "; ".join(filter(None, ("name a readable TOML file", example)))
        raise error(f"{found}: {why.strerror}", remedy=remedy) from why
    # Invalid TOML or UTF-8, too long a number, too deep nesting.
    except (ValueError, RecursionError) as why:
        raise error(f"{found}: {why}", expected="valid TOML", remedy=example) from why


def names_file(job: str) -> bool:
    """Return whether the text identifies a job file; otherwise it is the name of a stored job."""
    return job.endswith(".toml") or Path(job).exists()


# ---
# Data of the package, next to the code: SQL statements in ``sql/`` and TOML tables in ``data/``.


@cache
def read_text(package: str, name: str) -> str:
    """Return the text of a file of a package; callers pass their ``__package__``."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def read_sql(package: str, name: str) -> str:
    """Return the text of ``sql/<name>.sql`` in a package; callers pass their ``__package__``."""
    return read_text(package, f"sql/{name}.sql")


def sql_names(package: str) -> list[str]:
    """Return the names of the files ``sql/<name>.sql`` in a package, sorted."""
    found = (file.name for file in files(package).joinpath("sql").iterdir())
    return sorted(name.removesuffix(".sql") for name in found if name.endswith(".sql"))


@cache
def read_data(package: str, name: str) -> dict[str, Any]:
    """Return the content of ``data/<name>.toml`` in a package; the result is cached, so callers must not modify it."""
    return tomllib.loads(read_text(package, f"data/{name}.toml"))
