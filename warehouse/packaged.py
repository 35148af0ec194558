"""Files shipped beside the code that reads them: SQL statements in ``sql/``, TOML tables of facts in ``data/``."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def read_sql(package: str, name: str) -> str:
    """The text of ``sql/<name>.sql`` in a package; callers pass their own ``__package__``."""
    return files(package).joinpath(f"sql/{name}.sql").read_text(encoding="utf-8")


@cache
def read_data(package: str, name: str) -> dict[str, Any]:
    """The content of ``data/<name>.toml`` in a package; kept, so nobody may change it."""
    return tomllib.loads(files(package).joinpath(f"data/{name}.toml").read_text(encoding="utf-8"))
