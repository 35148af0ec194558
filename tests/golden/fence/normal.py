"""Normalised answers: no clock times, no paths, figures to eleven digits, and long lists as a head and column summaries."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

#: Keys dropped everywhere: they hold the time, place and version of an answer.
VOLATILE = frozenset(
    {
        "seconds",
        "wall_seconds",
        "total_seconds",
        "elapsed",
        "elapsed_seconds",
        "version",
        "report",
        "folder",
        "html",
        "imported_at",
        "made",
        "measured_at",
        "created_at",
    }
)
#: Lists of records, and tables of records by name, are summarised from this many entries on; lists of values
#: from twice that.
LONG = 40
#: Entries of a summarised list that are stored unchanged.
HEAD = 2
#: Distinct words of a column that are counted individually; beyond this number a hash is stored.
WORDS = 8


def normal(value: Any, places: Mapping[str, str] | None = None) -> Any:
    """Drop volatile keys, replace paths by names, and round figures; nothing is summarised yet.

    `places` maps paths of this machine to their placeholders.
    """
    if isinstance(value, Mapping):
        return {str(key): normal(part, places) for key, part in value.items() if key not in VOLATILE}
    if isinstance(value, (list, tuple)):
        return [normal(part, places) for part in value]
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        return rounded(value)
    text = str(value)
    for path, name in (places or {}).items():
        text = text.replace(path, name)
    return re.sub(r"\b\d+(\.\d+)? s\b", "# s", text) if "took" in text else text


def rounded(figure: float) -> float | str:
    """Round to eleven significant digits, well inside the tolerance of a comparison."""
    if not math.isfinite(figure):
        return str(figure)
    return float(f"{figure:.11g}") + 0.0  # no minus zero


def summary(value: Any) -> Any:
    """Return the answer with each long list as its length, its head and column summaries."""
    if isinstance(value, Mapping):
        if "~rows" in value:
            return dict(value)  # summarised already
        if len(value) >= LONG and all(
            isinstance(part, Mapping) and "~rows" not in part for part in value.values()
        ):
            return _table([{"~key": key, **part} for key, part in value.items()])
        return {key: summary(part) for key, part in value.items()}
    if isinstance(value, list):
        if len(value) >= LONG and all(isinstance(part, Mapping) for part in value):
            return _table(value)
        if len(value) >= 2 * LONG and not any(isinstance(part, (Mapping, list)) for part in value):
            return {"~values": len(value), "head": value[: 2 * HEAD], **column(value)}
        return [summary(part) for part in value]
    return value


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "~rows": len(rows),
        "head": [summary(dict(row)) for row in rows[:HEAD]],
        "columns": columns([dict(leaves(row)) for row in rows]),
    }


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a summary of every field of flat records, from the first record to the last."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: column([row.get(name) for row in rows]) for name in names}


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Return (dotted path, figure or word) of every value in a record; lists in it get separate columns."""
    if isinstance(value, Mapping):
        return [
            leaf for key, part in value.items() for leaf in leaves(part, f"{path}.{key}" if path else key)
        ]
    if isinstance(value, list):
        return [(path, json.dumps(value, sort_keys=True))]
    return [(path, value)]


def column(values: Sequence[Any]) -> dict[str, Any]:
    """Return the summary of a column, in figures that a tolerance can be applied to.

    `walk` is a mean with weights that rise and fall along the column: it changes when entries change places.
    """
    told = [value for value in values if value is not None]
    figures = [value for value in told if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if len(figures) == len(told) and figures:
        weights = [
            (index * 0.6180339887498949) % 1.0 for index, value in enumerate(values) if value is not None
        ]
        return {
            "n": len(figures),
            "mean": rounded(math.fsum(figures) / len(figures)),
            "min": min(figures),
            "max": max(figures),
            "walk": rounded(math.fsum(w * f for w, f in zip(weights, figures, strict=True)) / len(figures)),
        }
    words = [str(value) for value in values]
    counts = Counter(words)
    told_by_hash = {"sha256": hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]}
    if len(counts) <= WORDS and max(map(len, counts), default=0) <= 80:
        return {"counts": dict(sorted(counts.items())), **told_by_hash}
    return {"distinct": len(counts), "first": words[0][:80], "last": words[-1][:80], **told_by_hash}


def packed(value: Any) -> Any:
    """Return the answer with the field names of a list of records written once."""
    if isinstance(value, Mapping):
        return {key: packed(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) >= 3 and all(isinstance(part, Mapping) and list(part) == list(value[0]) for part in value):
        return {
            "~fields": list(value[0]),
            "records": [[packed(part) for part in row.values()] for row in value],
        }
    return [packed(part) for part in value]


def unpacked(value: Any) -> Any:
    """Invert `packed`."""
    if isinstance(value, Mapping):
        if "~fields" in value:
            return [dict(zip(value["~fields"], map(unpacked, row), strict=True)) for row in value["records"]]
        return {key: unpacked(part) for key, part in value.items()}
    return [unpacked(part) for part in value] if isinstance(value, list) else value


def text(value: Any, width: int = 150, indent: str = "") -> str:
    """Return JSON with a line for each part that fits on a line, and for each list of values, so that diffs are readable."""
    short = json.dumps(value, ensure_ascii=False)
    plain = isinstance(value, list) and not any(isinstance(part, (Mapping, list)) for part in value)
    if plain or not isinstance(value, (Mapping, list)) or len(short) + len(indent) <= width:
        return short
    inner = indent + " "
    if isinstance(value, Mapping):
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: {text(part, width, inner)}"
            for key, part in value.items()
        ]
        left, right = "{}"
    else:
        parts, (left, right) = [text(part, width, inner) for part in value], "[]"
    return f"{left}\n{inner}" + f",\n{inner}".join(parts) + f"\n{indent}{right}"
