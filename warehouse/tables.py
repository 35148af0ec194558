"""The tables of the warehouse for what handles all of them: what each refers to, and which of its columns says when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from warehouse.errors import StoreError


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRule:
    """``needs``: tables whose ids its rows carry; ``since``: SQL that is true for rows of the time $since or later."""

    needs: tuple[str, ...] = ()
    since: str = "TRUE"


def _from(column: str) -> TableRule:
    return TableRule(since=f"({column} IS NULL OR {column} >= $since)")


_OBSERVED = TableRule(needs=("series", "imports"), since="known_at >= $since")
_BATCHES = (
    "batch IN (SELECT batch FROM price WHERE known_at >= $since UNION SELECT batch FROM availability WHERE known_at >= $since "
    "UNION SELECT batch FROM imports WHERE imported_at >= $since)"
)
#: Every table but the schema's own record, in an order in which each follows what it needs. What is small or is referred to by
#: later rows (markets, jobs) is always taken whole.
TABLES: Mapping[str, TableRule] = {
    "markets": TableRule(),
    "series": TableRule(needs=("markets",)),
    "imports": TableRule(since=_BATCHES),
    "price": _OBSERVED,
    "availability": _OBSERVED,
    "rejected": TableRule(needs=("imports",), since=_BATCHES),
    "assumptions": TableRule(),
    "vintages": _from("issued_at"),
    "forecasts": TableRule(
        needs=("vintages",), since="vid IN (SELECT vid FROM vintages WHERE issued_at >= $since)"
    ),
    "accuracy": _from("measured_at"),
    "jobs": TableRule(),
    "decisions": _from("slot"),
    "outcomes": _from("scored_at"),
    "weights": _from("scored_at"),
    "runs": _from("logical_at"),
    "fitted": _from("fitted_at"),
    "reports": _from("known_at"),
    "deliveries": _from("slot"),
    "fetches": _from("logical_at"),
    "alarms": TableRule(since="(cleared_at IS NULL OR cleared_at >= $since)"),
}


def with_needs(names: Iterable[str]) -> list[str]:
    """Some tables (none named: all) and what they need, in the order of `TABLES`; raises `StoreError` for an unknown one."""
    asked = list(names) or list(TABLES)
    wanted: set[str] = set()
    while asked:
        name = asked.pop()
        if name not in TABLES:
            raise StoreError(f"no table {name!r}", expected=f"some of {', '.join(TABLES)}")
        wanted.add(name)
        asked += [needed for needed in TABLES[name].needs if needed not in wanted]
    return [name for name in TABLES if name in wanted]


def quoted(text: object) -> str:
    """A text as an SQL literal, for the statements that take no parameters."""
    return "'" + str(text).replace("'", "''") + "'"
