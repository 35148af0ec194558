"""The ``catalogue`` command: known instance types with their GPUs and on-demand list prices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import MOST_LISTED, Answer, Output, all_fit, option
from slackwater.flows.show.blocks import Block, Column, Notes, Table
from slackwater.flows.show.formats import price

if TYPE_CHECKING:
    from slackwater.warehouse.catalogue import InstanceType

MOST_SOURCES = 6  # Number of sources listed by name; the others are only counted

COLUMNS: dict[str, Column | str] = {
    "type": "instance type", "holds": "GPUs", "on_demand": Column(heading="on-demand $/h"), "regions": "regions", "date": "price",
}  # fmt: skip


def catalogue(
    *patterns: Annotated[
        str,
        option(
            "Provider, region, instance type or GPU: a part of its name or a shell pattern; several must all fit.",
            metavar="PATTERN...",
        ),
    ],
    output: Output = Output(),
) -> Answer:
    """List instance types with GPUs, on-demand list price, source and date; prices are per instance."""
    from slackwater.warehouse.catalogue import catalogue as all_rows

    found = [row for row in all_rows() if all(_fits(row, pattern) for pattern in patterns)]
    rows = [_row_values(row, patterns) for row in found]
    blocks: list[Block] = [
        Table(
            f"Instance types ({len(rows)} of {len(all_rows())} rows)",
            rows,
            COLUMNS,
            most=MOST_LISTED,
            empty="none fits",
        )
    ]
    if sources := sorted({f"{row.source}" for row in found}):
        more = len(sources) - MOST_SOURCES
        shown_sources = sources[:MOST_SOURCES] + ([f"{more} more; --json has all"] if more > 0 else [])
        blocks.append(Notes([f"Sources: {'; '.join(shown_sources)}"]))
    if not patterns:
        blocks.append(
            Notes(["name a provider, region, type or GPU to see fewer: slackwater catalogue aws H100"])
        )
    return Answer(
        title="Catalogue", value={"instance_types": [_plain(row, patterns) for row in found]}, blocks=blocks
    )


def _fits(row: InstanceType, pattern: str) -> bool:
    return all_fit([pattern], (row.provider, row.instance_type, row.gpu_model or "", *row.regions))


def _regions(row: InstanceType, patterns: Sequence[str]) -> list[str]:
    """Return the regions of a row that match any pattern, or all its regions if none matches."""
    from slackwater.warehouse.catalogue import is_named

    named = [region for region in row.regions if any(is_named(pattern, region) for pattern in patterns)]
    return named or list(row.regions)


def _plain(row: InstanceType, patterns: Sequence[str]) -> dict[str, Any]:
    usd, gpus = row.on_demand_usd, row.gpus
    return {
        "provider": row.provider,
        "instance_type": row.instance_type,
        "gpu_model": row.gpu_model,
        "gpus": gpus,
        "gpu_memory_gib": row.gpu_memory_gib,
        "regions": _regions(row, patterns),
        "on_demand_usd": usd,
        "on_demand_usd_per_gpu": None if usd is None or not gpus else round(usd / gpus, 6),
        "sold_on_demand": row.sold,
        "valid_from": row.valid_from or None,
        "source": row.source,
        "source_date": row.source_date or None,
    }


def _row_values(row: InstanceType, patterns: Sequence[str]) -> dict[str, Any]:
    unsold = "unknown" if row.sold else "not sold"
    first, *others = _regions(row, patterns)
    date = f"from {row.valid_from}" if row.valid_from else f"read {row.source_date or 'on an unknown day'}"
    return {
        "type": f"{row.provider} {row.instance_type}",
        "holds": "none or unknown" if row.gpus is None else f"{row.gpus} x {row.gpu_model}",
        "on_demand": unsold if row.on_demand_usd is None else price(row.on_demand_usd),
        "regions": f"{first} and {len(others)} more" if others else first,
        "date": date,
    }
