"""The SQL that is shipped as files."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def read_sql(name: str) -> str:
    """The text of ``warehouse/sql/<name>.sql``."""
    return files("warehouse").joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")
