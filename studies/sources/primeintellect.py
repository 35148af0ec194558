"""Prime Intellect marketplace snapshots: JSON Lines with counts and prices by provider and by size."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from slackwater.warehouse.columns import because
from slackwater.warehouse.sources.contract import (
    NOT_UTF8,
    Batch,
    Kind,
    Options,
    Row,
    is_text,
    label_option,
    pack,
    rejection,
)
from slackwater.warehouse.sources.files.reading import FileSource, head, loads, numbered_lines

PER_GPU_MEDIAN = "per GPU, median over offers"
PER_GPU_MIN = "per GPU, min over offers"
PER_INSTANCE_MIN = "per instance, min over offers"
_SIZE = re.compile(r"^(\d+)x$")
_OBJECTS = ("price_stats", "availability", "by_provider", "by_config")


@dataclass(slots=True)
class _SeenOffers:
    """Providers and sizes that occur anywhere in the file, per GPU; those missing from a snapshot had no offer."""

    providers: dict[str, dict[str, None]]
    sizes: dict[str, dict[str, None]]


class PrimeIntellectOptions(Options):
    """Options of marketplace snapshots."""

    gap_seconds: int = Field(1800, ge=1, description="nominal seconds between snapshots (default: 1800)")
    source: str = label_option("primeintellect")


class PrimeIntellect(FileSource[PrimeIntellectOptions]):
    """Each line is a snapshot of a GPU model.

    It yields these rows, all with that ``line``:

    - availability of ``all`` (every offer listed), of every provider and of every size (``_x8``:
      instances of 8 GPUs) that occurs anywhere in the file; a provider or size missing from the
      snapshot counts 0;
    - prices per GPU of ``all`` (median and min) and of every provider present (min), and per
      instance of every size present (min).

    Counts are listed offers, not a launch test. The low/medium/high stock split and the other price
    statistics are dropped.
    """

    name = "primeintellect"
    zone = ""
    form = PrimeIntellectOptions
    expected = "one JSON object a line with timestamp, gpu_type, socket_type, availability, by_provider and by_config"
    examples: Mapping[str, str] = {
        "h100.jsonl": '{"timestamp": "2025-10-19T21:00:00+00:00", "gpu_type": "H100_80GB", "socket_type": "SXM5", '
        '"price_stats": {"min": 1.0}, "availability": {"total": 3}, "by_provider": {"a": {"count": 3}}, "by_config": {}}\n'
    }

    def recognised(self, path: Path) -> bool:
        """Recognise the format by the suffix and a field in the first lines."""
        return path.suffix in (".jsonl", ".ndjson") and b'"by_provider"' in head(path)

    def batches(self, path: Path, options: PrimeIntellectOptions) -> Iterator[Batch]:
        """Return the rows of a file, which is read twice."""
        constants = {
            "source": options.source,
            "provider": "primeintellect",
            "region": "global",
            "gap_seconds": options.gap_seconds,
            "kind": "offers",
            "truncated": False,
            "file": str(path),
        }
        return pack(_rows(path), constants)


def _snapshots(path: Path) -> Iterator[tuple[int, str, dict[str, Any] | str]]:
    """Yield (line, text, snapshot or rejection reason)."""
    for line, text in numbered_lines(path):
        if not text.strip():
            yield line, text, because("line.empty")
            continue
        if not is_text(text):
            yield line, text, NOT_UTF8
            continue
        try:
            snapshot = loads(text)
        except (ValueError, RecursionError) as error:
            yield line, text, because("line.not_json", error)
            continue
        if "\\u" in text and not _writable(snapshot):
            yield line, text, because("line.half_character", "a name")
            continue
        yield line, text, _check_snapshot(snapshot)


def _writable(snapshot: Any) -> bool:
    """Return whether all texts can be encoded: an unpaired surrogate would reject a row of every other snapshot."""
    try:
        json.dumps(snapshot, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_snapshot(snapshot: Any) -> dict[str, Any] | str:
    if not isinstance(snapshot, dict):
        return because("line.not_object")
    for name in ("timestamp", "gpu_type", "socket_type"):
        if not isinstance(snapshot.get(name), str):
            return because("price.lacks", name)
    for name in _OBJECTS:
        if not isinstance(snapshot.get(name), dict):
            return because("price.lacks", f"object {name}")
    if "total" not in snapshot["availability"]:
        return because("price.lacks", "availability.total")
    for group in ("by_provider", "by_config"):
        for key, entry in snapshot[group].items():
            if not isinstance(entry, dict) or "count" not in entry:
                return because("record.lacks_count", repr(key), group)
            if group == "by_config" and not _SIZE.match(key):
                return because("size.not_number", repr(key))
    return snapshot


def _gpu(snapshot: Mapping[str, Any]) -> str:
    return f"{snapshot['gpu_type']}_{snapshot['socket_type']}"


def _seen_offers(path: Path) -> _SeenOffers:
    seen = _SeenOffers(providers={}, sizes={})
    for _, _, snapshot in _snapshots(path):
        if not isinstance(snapshot, str):
            gpu = _gpu(snapshot)
            seen.providers.setdefault(gpu, {}).update(dict.fromkeys(snapshot["by_provider"]))
            seen.sizes.setdefault(gpu, {}).update(dict.fromkeys(snapshot["by_config"]))
    return seen


def _rows(path: Path) -> Iterator[tuple[Kind, Row]]:
    seen = _seen_offers(path)
    for line, text, snapshot in _snapshots(path):
        if isinstance(snapshot, str):
            yield rejection(line, text, snapshot)
            continue
        gpu = _gpu(snapshot)
        for kind, row in _snapshot_rows(snapshot, gpu, sorted(seen.providers[gpu]), sorted(seen.sizes[gpu])):
            yield kind, {"observed_at": snapshot["timestamp"], "line": line, **row}


def _snapshot_rows(
    snapshot: Mapping[str, Any], gpu: str, providers: Sequence[str], sizes: Sequence[str]
) -> Iterator[tuple[Kind, Row]]:
    whole = {"zone": "all", "instance_type": gpu}
    yield "availability", {**whole, "available": snapshot["availability"]["total"]}
    for product, statistic in ((PER_GPU_MEDIAN, "median"), (PER_GPU_MIN, "min")):
        if snapshot["price_stats"].get(statistic) is not None:
            yield "price", {**whole, "product": product, "price_usd": snapshot["price_stats"][statistic]}
    for provider in providers:
        entry = snapshot["by_provider"].get(provider, {})
        place = {"zone": provider, "instance_type": gpu}
        yield "availability", {**place, "available": entry.get("count", 0)}
        if entry.get("min") is not None:
            yield "price", {**place, "product": PER_GPU_MIN, "price_usd": entry["min"]}
    for size in sizes:
        entry = snapshot["by_config"].get(size, {})
        place = {"zone": "all", "instance_type": f"{gpu}_x{size.removesuffix('x')}"}
        yield "availability", {**place, "available": entry.get("count", 0)}
        if entry.get("min_total") is not None:
            yield "price", {**place, "product": PER_INSTANCE_MIN, "price_usd": entry["min_total"]}
