"""Package data stored next to the code: SQL statements in ``sql/`` and TOML tables in ``data/``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def read_sql(package: str, name: str) -> str:
    """Return the text of ``sql/<name>.sql`` in a package; callers pass their ``__package__``."""
    return files(package).joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")


@cache
def read_data(package: str, name: str) -> dict[str, Any]:
    """Return the content of ``data/<name>.toml`` in a package; the result is cached, so callers must not modify it."""
    return tomllib.loads(files(package).joinpath(f"data/{name}.toml").read_text(encoding="utf-8"))
