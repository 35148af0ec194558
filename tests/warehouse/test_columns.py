"""Every declared column goes from a CSV file to its view, and a half-made change of the columns is refused."""

import ast
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest
from storekit import T0, count_row, counts, price_row, prices, text_rows

from slackwater.warehouse import columns, sources
from slackwater.warehouse.columns import BOTH, COLUMNS, REASONS, STATED, because, code_of, stored_columns
from slackwater.warehouse.errors import SchemaError
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.observations import append, ingest, rejected_rows
from slackwater.warehouse.sources.contract import rejected_batch
from slackwater.warehouse.store.connection import open_store
from slackwater.warehouse.store.schema import MIGRATIONS, migrate

VALUES = {"number": 1.5, "whole": 3, "flag": True, "word": "probe"}
VIEWS = {"price": "market_prices", "availability": "market_counts"}
PLACE = {
    "provider": "aws",
    "region": "us-east-1",
    "zone": "us-east-1a",
    "instance_type": "p3.2xlarge",
    "timestamp": "2023-03-01",
}
STORED = [(kind, column) for kind in BOTH for column in stored_columns(kind)]
ids = [f"{kind}-{column.name}" for kind, column in STORED]


@pytest.mark.parametrize("kind", BOTH)
def test_every_stored_column_goes_from_a_file_to_its_view(tmp_path, kind):
    stored = stored_columns(kind)
    row = PLACE | {column.names[0]: VALUES[column.type] for column in stored}
    path = tmp_path / "table.csv"
    path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
    with open_store(tmp_path / "w.duckdb") as store:
        assert ingest(store, "tabular", path).added == 1
        names = ", ".join(column.name for column in stored)
        found = store.execute(f"SELECT {names} FROM {VIEWS[kind]}")
    assert found == [tuple(VALUES[column.type] for column in stored)]


@pytest.mark.parametrize(("kind", "column"), STORED, ids=ids)
def test_a_value_that_is_none_is_counted(kind, column):
    row = price_row(T0, 1.0) if kind == "price" else count_row(T0, 3)
    make = prices if kind == "price" else counts
    with open_store(":memory:") as store:
        done = append(store, make(*text_rows([row | {column.name: "x?"}])), source="t")
    told = done.set_aside if column.set_aside else done.reasons
    assert list(told.values()) == [1]
    assert all(reason.startswith(f"{column.name} ") for reason in told)


@pytest.mark.parametrize("kind", BOTH)
def test_a_declared_column_without_a_migration_is_refused(monkeypatch, kind):
    more = replace(stored_columns(kind)[-1], name="other_number", names=("other_number",))
    monkeypatch.setattr(columns, "COLUMNS", (*COLUMNS, more))
    with pytest.raises(SchemaError, match=f"{kind}.other_number is missing"):
        open_store(":memory:")


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE price ADD COLUMN other_number DOUBLE",
        "ALTER TABLE availability DROP COLUMN truncated",
        "ALTER TABLE availability ALTER capacity TYPE BIGINT",
    ],
)
def test_a_file_whose_columns_are_not_the_declared_ones_is_refused(tmp_path, change):
    path = tmp_path / "w.duckdb"
    with duckdb.connect(str(path)) as other:
        migrate(other)
        other.execute(change)
    with pytest.raises(SchemaError, match=r"declared as"):
        open_store(path)


def test_steps_are_numbered_without_gap_or_repeat():
    """Two branches may add a step each: the second takes the next number."""
    assert [int(name[:4]) for name in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_names_and_codes_are_those_of_one_column():
    names = [name for column in COLUMNS for name in {column.name, *column.names}]
    assert len(names) == len(set(names))
    codes = [code_of(column, check) for column in COLUMNS for check in column.checks]
    assert len(codes) == len(set(codes))
    kinds = {}
    for code, reason in REASONS.items():
        assert kinds.setdefault(reason.kind, code).split(".")[0] == code.split(".")[0]


#: Sentence of a rejected row stored by an earlier version -> the text under which it is counted.
EARLIER = {
    "price_usd -0.1 is negative": "price_usd is negative",
    "observed_at 1066\n is outside 1900..2200": "observed_at is outside 1900..2200",
    "zone a is longer than 200": "zone is longer than 200",
    "no zone": "no zone",
    "contradicts line 4 of the same market and time": "contradicts line ... of the same market and time",
    "conflicts with stored value 3": "conflicts with stored value ...",
    "conflicts with stored capacity 3": "conflicts with stored capacity ...",
    "kind abc is none of probe, held, offers, score, band": "kind abc is none of probe, held, offers, score, band",
    "unknown zone 'x'": "unknown zone 'x'",
    "no offer 4 of 'y'": "no offer ... of ...",
}


def test_rejected_rows_of_an_earlier_version_are_shown_and_counted_by_code(tmp_path):
    path = tmp_path / "w.duckdb"
    with duckdb.connect(str(path)) as old:
        migrate(old, MIGRATIONS[: MIGRATIONS.index("0013_reasons")])
        old.execute(
            "INSERT INTO imports SELECT 1, 'f', 'c', 'tabular', 'f.csv', '{}', '', '[]', NULL, 0, 0, 1"
        )
        for line, reason in enumerate(EARLIER):
            old.execute("INSERT INTO rejected VALUES (1, 'f.csv', ?, '{}', ?)", [line, reason])
    with open_store(path) as store:
        found = rejected_rows(store)
        assert found.reasons == dict.fromkeys(EARLIER.values(), 1)
        assert [row["reason"] for row in found.rows] == list(EARLIER)[::-1]
        for reason, kind in EARLIER.items():
            assert reason in {row["reason"] for row in rejected_rows(store, reason=kind).rows}


def test_every_rejection_of_a_source_of_the_product_has_a_code():
    """A reason is written with `because` (or `NoPrice`, which calls it), never as a sentence in place."""
    found = []
    for path in sorted(Path(sources.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            told = {"rejection": node.args[2:3], "because": node.args[:1], "NoPrice": node.args[:1]}.get(
                name, []
            )
            for argument in told:
                if name == "rejection":
                    found += [ast.unparse(node)] if isinstance(argument, ast.Constant | ast.JoinedStr) else []
                else:
                    codes = [one.value for one in ast.walk(argument) if isinstance(one, ast.Constant)]
                    found += [code for code in codes if isinstance(code, str) and code not in STATED]
    assert found == []


def test_reasons_of_sources_are_stored_with_their_code():
    rows = [
        (1, "", because("line.empty")),
        (2, "x", because("line.not_json", "char 3")),
        (3, "y", "row 7 of a plug-in"),
    ]
    rows += [(4, "z", because("zone.unknown", "'moon'", "of aws"))]
    with open_store(":memory:") as store:
        done = append(store, [rejected_batch(Path("f"), rows)], source="test", assumptions=[], imported_at=T0)
        kept = read_rows(store, "rejected", order_by=["line"])
    assert list(kept["code"]) == ["line.empty", "line.not_json", "", "zone.unknown"]
    assert list(kept["reason"]) == [str(reason) for _, _, reason in rows]
    assert done.reasons == dict.fromkeys(
        ["empty line", "not JSON ...", "row ... of a plug-in", "unknown zone 'moon' of aws"], 1
    )
