"""Products of prices, and the product that jobs are planned on (M1.1).

Jobs run on Linux and rent spot instances. Prices of another operating system or another way to buy
(reserved, flex-start, low priority, on-demand) are stored under their product name and never used
as the price of the market.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeVar

#: Products that jobs are planned on, most preferred first; case-insensitive. "" is the product of
#: availability.
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
#: Words in the names of products never used for planning; the regular expression works in Python
#: and DuckDB.
OTHER_PRODUCTS = (
    r"(?i)windows|red ?hat|\brhel\b|suse|\bsles\b|ubuntu ?pro|macos|\bsql\b|\bbyol\b"
    r"|on[ _-]?demand|reserv|saving|commit|flex[ _-]?start|\bdws\b|calendar|low[ _-]?prio|dedicated"
)
#: Rank of a product whose name matches neither list.
UNKNOWN_RANK = len(PLANNED_PRODUCTS)
#: Product of a price whose source does not state any.
UNSPECIFIED = "unspecified"

_RANKS = {name.casefold(): rank for rank, name in enumerate(PLANNED_PRODUCTS)}
_OTHER = re.compile(OTHER_PRODUCTS)
ItemT = TypeVar("ItemT")


def product_rank(product: str) -> int | None:
    """Return the rank of a product among those used for planning (0 = preferred); None for a product that is never used.

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
    """Return the item with the best-ranked product, independent of the order of the items; None without such an item.

    Returns None also if several products share the best rank (unknown names): it is not known which
    of them a job would rent.
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
    """Return why none of these products of a market can be used for planning.

    >>> unplanned_words(["Windows", "SUSE Linux"]), unplanned_words(["b", "a", "Windows"])
    ('only SUSE Linux, Windows', 'a or b, nothing says which')
    """
    names = sorted(set(products))
    unknown = [name for name in names if product_rank(name) is not None]
    return f"{' or '.join(unknown)}, nothing says which" if unknown else f"only {', '.join(names)}"
