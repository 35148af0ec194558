"""What a warehouse holds, compared with what it should hold: rows lost, rows doubled, and counts that do not add up."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from warehouse.issued import NATURAL_KEYS
from warehouse.store.connection import Store, open_reader, open_store

#: Every table, and the columns of which no two rows may be alike.
UNIQUE = {
    **NATURAL_KEYS,
    "markets": ("provider", "region", "zone", "instance_type"),
    "series": ("mid", "source", "kind", "product"),
    "price": ("sid", "observed_at", "known_at"),
    "availability": ("sid", "observed_at", "known_at"),
    "imports": ("fingerprint",),
    "vintages": ("market", "source", "model", "issued_at", "step_seconds"),
    "forecasts": ("vid", "variable", "step_ahead"),
}
#: The ids that stand for those keys.
IDS = {"markets": ("mid",), "series": ("sid",), "vintages": ("vid",), "imports": ("batch",)}
TABLES = (*UNIQUE, "rejected")


def digest_of(
    store: Store, without: Collection[str] = (), tables: Collection[str] = TABLES
) -> dict[str, list[str]]:
    """Rows and a sum of their hashes, table by table: two warehouses with the same rows have the same digest, in any order.

    ``without``: columns that do not count, of every table (``batch``) or of one (``fetches.requests``).
    """
    return {
        name: [
            str(value)
            for value in store.execute(
                f"SELECT count(*), sum(hash(t)::HUGEINT) FROM (SELECT {_columns(store, name, without)} FROM {name}) AS t"
            )[0]
        ]
        for name in tables
    }


def _columns(store: Store, table: str, without: Collection[str]) -> str:
    rows = store.execute(f"DESCRIBE {table}")
    return ", ".join(row[0] for row in rows if not {row[0], f"{table}.{row[0]}"} & {*without})


def doubled_keys(store: Store) -> int:
    """Rows beyond the first of every natural key and of every id."""
    count = 0
    for keys in (UNIQUE, IDS):
        for table, columns in keys.items():
            key = ", ".join(columns)
            (extra,) = store.execute(f"SELECT count(*) - count(DISTINCT ({key})) FROM {table}")[0]
            count += int(extra)
    return count


def rows_of_table(store: Store, table: str, without: Collection[str] = ()) -> Counter[str]:
    """The rows of a table as text, each with how often it is there."""
    frame = store.arrow(f"SELECT {_columns(store, table, without)} FROM {table}")
    return Counter(map(repr, frame.to_pylist()))


def contents(
    db: Path, without: Collection[str] = (), tables: Collection[str] = TABLES
) -> dict[str, Counter[str]]:
    """Every row of every table."""
    with open_store(db) as store:
        return {table: rows_of_table(store, table, without) for table in tables}


def imported(store: Store) -> dict[str, int]:
    """What the ledger of imports counts, what the tables hold of it, and contents whose rejected rows are not all kept aside.

    Rows of the same content, under whatever name, are kept aside once.
    """
    names = ("added", "repeated", "rejected")
    sums = store.execute(f"SELECT {', '.join(f'coalesce(sum({name}), 0)' for name in names)} FROM imports")[0]
    held = store.execute("SELECT (SELECT count(*) FROM price) + (SELECT count(*) FROM availability)")[0][0]
    unkept = store.execute(
        "SELECT count(*) FROM (SELECT content, max(rejected) AS most, sum(rejected) AS all_of_them, sum(kept) AS kept FROM imports "
        "LEFT JOIN (SELECT batch, count(*) AS kept FROM rejected GROUP BY batch) USING (batch) GROUP BY content) "
        "WHERE coalesce(kept, 0) NOT BETWEEN most AND all_of_them"
    )[0][0]
    return {name: int(value) for name, value in zip(names, sums, strict=True)} | {
        "held": held,
        "unkept": unkept,
    }


def checked(db: Path, without: Collection[str] = ()) -> dict[str, object]:
    """A whole look at a warehouse: its digest, keys that are there twice, and its import counts."""
    with open_store(db) as store:
        return {
            "digest": digest_of(store, without),
            "doubled": doubled_keys(store),
            "imported": imported(store),
        }


def read_digest(db: Path) -> dict[str, list[str]]:
    """The digest as a reader sees it, and all of it from one snapshot."""
    with open_reader(db) as store:
        return digest_of(store)


def differences(wanted: dict[str, Counter[str]], found: dict[str, Counter[str]]) -> tuple[int, int]:
    """Rows that are wanted and not found, and rows found more often than wanted."""
    lost = sum((wanted[table] - found[table]).total() for table in wanted)
    doubled = sum((found[table] - wanted[table]).total() for table in wanted)
    return lost, doubled
