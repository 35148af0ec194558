"""Table rows as plain dictionaries."""

from __future__ import annotations

from typing import Any, cast

import pandas as pd


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table with named columns, in order."""
    return cast("list[dict[str, Any]]", frame.to_dict("records"))
