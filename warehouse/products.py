"""Which product a price is of, and which of several a job is planned on (M1.1).

Jobs run on Linux and rent spot instances. A price of another operating system, or of another way to buy (reserved, flex-start,
low priority, on-demand), is kept under its own name and never answers for the market.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

#: Products that jobs are planned on, most preferred first; compared without regard to case. "" is the product of availability.
PLANNED_PRODUCTS = (
    "",
    "Linux/UNIX",
    "Linux",
    "Linux/UNIX (Amazon VPC)",
    "per GPU, min over offers",
    "per GPU, median over offers",
    "interruptible, median over offers",
    "interruptible, min over offers",
    "per instance, min over offers",
    "unspecified",
)
#: Words of products that no job is planned on, as a regular expression for Python and DuckDB alike.
OTHER_PRODUCTS = (
    r"(?i)windows|red ?hat|\brhel\b|suse|\bsles\b|ubuntu ?pro|macos|\bsql\b|\bbyol\b"
    r"|on[ _-]?demand|reserv|saving|commit|flex[ _-]?start|\bdws\b|calendar|low[ _-]?prio|dedicated"
)
#: The rank of a product whose name is neither planned on nor known to be another.
UNKNOWN_RANK = len(PLANNED_PRODUCTS)
#: The product of a price whose source does not state one.
UNSPECIFIED = "unspecified"

_RANKS = {name.casefold(): rank for rank, name in enumerate(PLANNED_PRODUCTS)}
_OTHER = re.compile(OTHER_PRODUCTS)
ItemT = TypeVar("ItemT")


def product_rank(product: str) -> int | None:
    """Return how far down a product stands among those that are planned on, None for one that no job is planned on.

    >>> product_rank("Linux/UNIX"), product_rank("Windows (Amazon VPC)"), product_rank("a name of our own") == UNKNOWN_RANK
    (1, None, True)
    """
    rank = _RANKS.get(product.strip().casefold())
    if rank is not None:
        return rank
    return None if _OTHER.search(product) else UNKNOWN_RANK


def rank_sql(column: str) -> str:
    """Return `product_rank` of a column as a DuckDB expression."""
    whens = " ".join(f"WHEN {_literal(name)} THEN {rank}" for name, rank in _RANKS.items())
    other = f"CASE WHEN NOT regexp_matches({column}, {_literal(OTHER_PRODUCTS)}) THEN {UNKNOWN_RANK} END"
    return f"CASE lower(trim({column})) {whens} ELSE {other} END"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def planned(items: Iterable[ItemT], product: Callable[[ItemT], str]) -> ItemT | None:
    """Return the item whose product is planned on, whatever the order of the items; None without one.

    Of several products with unknown names none is taken: nothing says which of them a job would rent.
    """
    ranked: dict[int, list[ItemT]] = {}
    for item in items:
        if (rank := product_rank(product(item))) is not None:
            ranked.setdefault(rank, []).append(item)
    if not ranked:
        return None
    best = ranked[min(ranked)]
    if len({product(item) for item in best}) > 1:
        return None
    return best[0]


def unplanned_words(products: Iterable[str]) -> str:
    """Return why a market with prices of these products has none that a job is planned on.

    >>> unplanned_words(["Windows", "SUSE Linux"]), unplanned_words(["b", "a", "Windows"])
    ('only SUSE Linux, Windows', 'a or b, nothing says which')
    """
    names = sorted(set(products))
    unknown = [name for name in names if product_rank(name) is not None]
    return f"{' or '.join(unknown)}, nothing says which" if unknown else f"only {', '.join(names)}"
