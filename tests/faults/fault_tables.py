"""Compare the contents of a warehouse with the expected contents: lost rows, doubled rows, and inconsistent counts."""

from collections import Counter
from collections.abc import Collection
from pathlib import Path

from slackwater.warehouse.issued import NATURAL_KEYS
from slackwater.warehouse.store.connection import Store, open_reader, open_store

#: Every table, and the columns in which no two rows may agree.
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
    """Return rows and a sum of their hashes by table: warehouses with the same rows in any order have the same digest.

    ``without``: ignored columns, of every table (``batch``) or of one table (``fetches.requests``).
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
    """Return the number of rows beyond the first of every natural key and of every id."""
    count = 0
    for keys in (UNIQUE, IDS):
        for table, columns in keys.items():
            key = ", ".join(columns)
            (extra,) = store.execute(f"SELECT count(*) - count(DISTINCT ({key})) FROM {table}")[0]
            count += int(extra)
    return count


def rows_of_table(store: Store, table: str, without: Collection[str] = ()) -> Counter[str]:
    """Return the rows of a table as text, each with its number of occurrences."""
    frame = store.arrow(f"SELECT {_columns(store, table, without)} FROM {table}")
    return Counter(map(repr, frame.to_pylist()))


def contents(
    db: Path, without: Collection[str] = (), tables: Collection[str] = TABLES
) -> dict[str, Counter[str]]:
    """Return every row of every table."""
    with open_store(db) as store:
        return {table: rows_of_table(store, table, without) for table in tables}


def imported(store: Store) -> dict[str, int]:
    """Return the counts of the import ledger, the counts of the tables, and contents without all rejected rows set aside.

    Rows of the same content, under any name, are set aside once.
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
    """Return a full check of a warehouse: its digest, duplicate keys, and its import counts."""
    with open_store(db) as store:
        return {
            "digest": digest_of(store, without),
            "doubled": doubled_keys(store),
            "imported": imported(store),
        }


def read_digest(db: Path) -> dict[str, list[str]]:
    """Return the digest as a reader sees it, from a single snapshot."""
    with open_reader(db) as store:
        return digest_of(store)


def differences(wanted: dict[str, Counter[str]], found: dict[str, Counter[str]]) -> tuple[int, int]:
    """Return the number of expected rows not found, and of rows found more often than expected."""
    lost = sum((wanted[table] - found[table]).total() for table in wanted)
    doubled = sum((found[table] - wanted[table]).total() for table in wanted)
    return lost, doubled
