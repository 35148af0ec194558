"""Export to Parquet and import: the same tables, without duplicates, and nothing from an altered folder."""

import json
import random
import shutil
from collections import Counter
from functools import partial
from itertools import chain

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from storekit import (
    DAY,
    HOUR,
    OPTIONS,
    T0,
    JsonSource,
    batch,
    count_row,
    counts,
    price_row,
    prices,
    tables,
    write_json,
)

from slackwater.warehouse.errors import InputError, SchemaError, StoreError
from slackwater.warehouse.exchange import NOT_IMPORTED, export_store, import_folder
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.observations import append, ingest_file
from slackwater.warehouse.store.connection import open_reader, open_store
from slackwater.warehouse.store.folders import MANIFEST, file_hash, read_manifest
from slackwater.warehouse.store.foreign import JSON_COLUMNS, LONGEST_TEXT
from slackwater.warehouse.store.schema import INTERNAL, TABLES, with_needs

#: Rows that `fill` added to an empty warehouse, by its arguments.
FILLED = {}


def fill(store, *, source="lab", hours=range(30)):
    """Add rows to every table; an empty warehouse gets copies of the first rows made with these arguments."""
    empty, key = not store.execute("SELECT 1 FROM imports LIMIT 1"), (source, hours)
    if not empty or key not in FILLED:
        fill_anew(store, source=source, hours=hours)
        if empty:
            FILLED[key] = {name: store.arrow(f"SELECT * FROM {name}") for name in TABLES}
        return
    with store.transaction():
        for name, table in FILLED[key].items():
            with store.registered("filled", table):
                store.execute(f"INSERT INTO {name} SELECT * FROM filled")


def fill_anew(store, *, source, hours):
    append(
        store, prices(*(price_row(T0 + k * HOUR, 1.0 + k % 5, k, source=source) for k in hours)), source="t"
    )
    append(store, counts(*(count_row(T0 + k * HOUR, k % 16, k, source=source, gpus=1, gpu_memory=16) for k in hours)), source="t",
           assumptions=("a word",), imported_at=T0)  # fmt: skip
    append(
        store,
        [batch("price", [price_row(T0 + k * HOUR, -1.0, k, source=source) for k in (1, 1, 2)])],
        source="bad",
    )
    first, last = T0 + min(hours) * HOUR, T0 + max(hours) * HOUR
    vintage = {"market": "aws/r/z/x", "source": source, "model": "m", "step_seconds": 3600, "newest_row": T0, "horizon": 1,
               "capacity": 4, "price_fallback": "", "count_fallback": "", "backfilled": False}  # fmt: skip
    (top,) = store.execute("SELECT coalesce(max(vid), 0) FROM vintages")[0]
    for place, at in enumerate((first, last), start=top + 1):
        names = ", ".join(["vid", "issued_at", *vintage])
        store.execute(
            f"INSERT INTO vintages ({names}) VALUES ({', '.join('?' * 12)})",
            [
                place,
                at.to_pydatetime(),
                *(v.to_pydatetime() if isinstance(v, pd.Timestamp) else v for v in vintage.values()),
            ],
        )
        for variable in ("price", "count"):
            store.execute(
                f"INSERT INTO forecasts VALUES (?, ?, 1, {', '.join('?' * 20)})",
                [place, variable, *range(20)],
            )
    for at in (first, last):
        write_rows(store, "decisions", [some_row(store, "decisions", source, at) | {"slot": at}])
    for name in (
        "accuracy",
        "jobs",
        "terms",
        "outcomes",
        "weights",
        "fitted",
        "revisions",
        "reports",
        "deliveries",
        "fetches",
        "alarms",
    ):
        write_rows(store, name, [some_row(store, name, source, first)])
    run = some_row(store, "runs", source, first) | {"status": "done", "made": "live"}
    write_rows(store, "runs", [run])


def some_row(store, table, text, at):
    """Return a row for any table by column type: a text, a time, or a small number."""
    kinds = {"VARCHAR": text, "TIMESTAMP WITH TIME ZONE": at, "BOOLEAN": False}
    row = {name: kinds.get(kind, 1) for name, kind, *_ in store.execute(f"DESCRIBE {table}")}
    row |= {name: json.dumps(form([])) for (of, name), form in JSON_COLUMNS.items() if of == table}
    row |= {"deadline_at": at + HOUR} if table == "jobs" else {}
    return row | ({"variable": "price"} if "variable" in row else {})


def everything(store):
    """Return all rows of all imported tables, with unchanged ids, sorted."""
    names = [name for name in TABLES if name not in NOT_IMPORTED]
    return {name: sorted(map(repr, store.execute(f"SELECT * FROM {name}"))) for name in names}


def meaning(store):
    """Return all rows without the ids that depend on the order of import."""
    found = dict(tables(store))
    found["forecasts"] = sorted(
        map(
            repr,
            store.execute(
                "SELECT v.* EXCLUDE (vid), f.* EXCLUDE (vid) FROM vintages AS v JOIN forecasts AS f USING (vid)"
            ),
        )
    )
    found["imports"] = sorted(map(repr, store.execute("SELECT * EXCLUDE (batch) FROM imports")))
    for kind in ("price", "availability"):
        found[f"{kind} by import"] = sorted(
            map(
                repr,
                store.execute(
                    f"SELECT fingerprint, count(*) FROM {kind} JOIN imports USING (batch) GROUP BY ALL"
                ),
            )
        )
    for name in set(TABLES) - {
        "markets",
        "series",
        "imports",
        "price",
        "availability",
        "rejected",
        "vintages",
        "forecasts",
        *NOT_IMPORTED,
    }:
        found[name] = sorted(map(repr, store.execute(f"SELECT * FROM {name}")))
    return found


def test_every_table_of_the_schema_is_exchanged(store):
    names = {row[0] for row in store.execute("SELECT table_name FROM duckdb_tables()")}
    assert set(TABLES) == names - set(INTERNAL)
    place = list(TABLES).index
    assert all(place(needed) < place(name) for name, rule in TABLES.items() for needed in rule.needs)
    fill(store)
    assert all(everything(store).values()), "the tests below need a row in every table"


def test_a_round_trip_gives_the_same_tables(store, tmp_path):
    fill(store)
    fill(store, source="other")
    manifest = export_store(store, tmp_path / "out")
    with open_store(tmp_path / "new.duckdb") as new:
        done = import_folder(new, tmp_path / "out")
        assert everything(new) == everything(store)
        assert {name: one.added for name, one in done.items()} == {
            n: f.rows for n, f in manifest.tables.items() if n not in NOT_IMPORTED
        }
        export_store(new, tmp_path / "again")
    assert sorted(p.name for p in tmp_path.iterdir() if p.is_dir()) == ["again", "new.duckdb.read", "out"]
    with open_store(":memory:") as third:
        import_folder(third, tmp_path / "again")
        assert everything(third) == everything(store)


def test_the_same_again_adds_nothing(store, tmp_path):
    fill(store)
    export_store(store, tmp_path / "out")
    with open_store(":memory:") as new:
        import_folder(new, tmp_path / "out")
        before = everything(new)
        done = import_folder(new, tmp_path / "out")
        assert everything(new) == before
        assert {name for name, one in done.items() if one.added or one.rejected} == set()
        assert all(one.repeated for one in done.values())
    before = everything(store)
    import_folder(store, tmp_path / "out")  # into the warehouse it was exported from
    assert everything(store) == before


def test_ids_are_found_again_by_what_they_stand_for(store, tmp_path):
    """The other warehouse has other markets, series, imports and vintages under the same numbers."""
    fill(store)
    export_store(store, tmp_path / "out")
    with open_store(":memory:") as both, open_store(":memory:") as expected:
        fill(both, source="other")
        import_folder(both, tmp_path / "out")
        fill(expected, source="other")
        fill(expected)
        assert meaning(both) == meaning(expected)


@pytest.mark.parametrize("seed", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, 6))])
def test_in_parts_and_in_any_order(tmp_path, seed):
    """Folders of different files, or of some tables at a time, add up to the same warehouse."""
    rng = random.Random(seed)
    with open_store(":memory:") as one, open_store(":memory:") as expected:
        folders = []
        for number, hours in enumerate((range(12), range(12, 30))):
            with open_store(":memory:") as store:
                for opened in (store, expected):
                    fill(opened, hours=hours, source=f"s{number}")
                for part in range(2):
                    names = rng.sample(sorted(TABLES), 4) if part else []
                    folder = tmp_path / f"{number}-{part}"
                    export_store(store, folder, tables=names)
                    folders.append(folder)
        rng.shuffle(folders)
        for folder in folders:
            import_folder(one, folder)
        found, wanted = meaning(one), meaning(expected)
        for name in ("weights", "fetches"):  # the same key in both: the stored row depends on the order
            assert len(found.pop(name)) == len(wanted.pop(name))
        assert found == wanted


@pytest.mark.parametrize(
    "size", [pytest.param(1, marks=pytest.mark.slow), 31, pytest.param(70, marks=pytest.mark.slow)]
)
def test_observations_come_in_parts(store, tmp_path, monkeypatch, size):
    for source in "ab":
        fill(store, source=source)
    export_store(store, tmp_path / "out")
    monkeypatch.setattr("slackwater.warehouse.exchange.PART_ROWS", size)
    with open_store(":memory:") as new:
        import_folder(new, tmp_path / "out")
        assert meaning(new) == meaning(store)


def test_rows_since_a_time(store, tmp_path):
    fill(store)
    since = T0 + 20 * HOUR
    manifest = export_store(store, tmp_path / "late", since=since)
    rows = {name: one.rows for name, one in manifest.tables.items()}
    assert rows["price"] == rows["availability"] == 10
    assert rows["vintages"] == 1
    assert rows["forecasts"] == 2
    assert rows["decisions"] == 1
    assert rows["imports"] == 2  # the refused folder added nothing
    assert rows["rejected"] == rows["accuracy"] == 0
    assert rows["jobs"] == rows["markets"] == 1
    with open_store(":memory:") as new:
        import_folder(new, tmp_path / "late")
        assert new.execute("SELECT min(observed_at) FROM price")[0][0] == since.to_pydatetime()
        export_store(store, tmp_path / "all")
        import_folder(new, tmp_path / "all")
        assert meaning(new) == meaning(store)


def test_a_table_brings_what_it_refers_to(store, tmp_path):
    fill(store)
    manifest = export_store(store, tmp_path / "out", tables=["forecasts", "price"])
    assert list(manifest.tables) == ["markets", "series", "imports", "price", "vintages", "forecasts"]
    with pytest.raises(StoreError, match="no table 'prices'"):
        with_needs(["prices"])


def test_a_value_that_contradicts_a_stored_one_is_kept_aside_once(store, tmp_path):
    append(store, prices(price_row(T0, 1.0), price_row(T0 + HOUR, 2.0)), source="t")
    export_store(store, tmp_path / "out")
    with open_store(":memory:") as other:
        append(other, prices(price_row(T0, 1.5)), source="t")
        for again in range(2):
            done = import_folder(other, tmp_path / "out")
            assert (done["price"].added, done["price"].repeated, done["price"].rejected) == (
                1 - again,
                again,
                1,
            )
            assert [row[0] for row in other.execute("SELECT price_usd FROM price ORDER BY observed_at")] == [
                1.5,
                2.0,
            ]
            assert other.execute("SELECT file, reason FROM rejected") == [
                ("price.parquet", "conflicts with stored value 1.5")
            ]


def test_a_failure_does_not_come_back_over_a_stage_that_is_done(store, tmp_path):
    run = {"run": "r1", "logical_at": T0, "stage": "ingest", "details": "{}"}
    write_rows(store, "runs", [{**run, "status": "failed"}])
    export_store(store, tmp_path / "failed")
    with open_store(":memory:") as other:
        write_rows(other, "runs", [{**run, "status": "done"}])
        import_folder(other, tmp_path / "failed")
        assert read_rows(other, "runs")["status"].tolist() == ["done"]


def test_a_file_read_there_is_not_read_again_here(store, tmp_path):
    path = write_json(tmp_path / "a.json", price=[price_row(T0, 1.0)])
    ingest_file(store, JsonSource(), path, options=OPTIONS)
    export_store(store, tmp_path / "out")
    with open_store(":memory:") as other:
        import_folder(other, tmp_path / "out")
        source = JsonSource()
        assert ingest_file(other, source, path, options=OPTIONS).repeated == 1
        assert source.reads == 0


def exported(store, tmp_path):
    fill(store)
    export_store(store, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture(scope="module")
def exported_once(tmp_path_factory):
    with open_store(":memory:") as store:
        return exported(store, tmp_path_factory.mktemp("exported"))


def edit(folder, **changes):
    found = json.loads((folder / MANIFEST).read_text())
    found |= changes
    (folder / MANIFEST).write_text(json.dumps(found))


def rewrite(folder, name, change):
    """Replace an exported table with a changed table, and update the manifest."""
    path = folder / f"{name}.parquet"
    table = change(pa.parquet.read_table(path))
    pa.parquet.write_table(table, path)
    found = json.loads((folder / MANIFEST).read_text())["tables"]
    found[name] = {"rows": table.num_rows, "sha256": file_hash(path)}
    edit(folder, tables=found)


def test_what_is_not_what_was_exported_is_refused_before_anything_is_touched(exported_once, tmp_path):
    folder = shutil.copytree(exported_once, tmp_path / "copy")
    with open_store(":memory:") as other:
        price = folder / "price.parquet"
        whole = price.read_bytes()
        price.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(InputError, match="its SHA-256 differs"):
            import_folder(other, folder)
        price.unlink()
        with pytest.raises(InputError, match=r"no file .*price\.parquet"):
            import_folder(other, folder)
        price.write_bytes(b"PAR1")
        found = json.loads((folder / MANIFEST).read_text())["tables"]
        edit(folder, tables=found | {"price": {"rows": 30, "sha256": file_hash(price)}})
        with pytest.raises(InputError, match=r"price\.parquet"):
            import_folder(other, folder)
        price.write_bytes(whole)
        edit(folder, tables=found | {"price": {"rows": 31, "sha256": file_hash(price)}})
        with pytest.raises(InputError, match="30 rows; expected 31"):
            import_folder(other, folder)
        assert not any(everything(other).values())
        edit(folder, tables=found)
        import_folder(other, folder)


def test_a_newer_schema_is_refused_and_an_older_one_taken(exported_once, tmp_path):
    folder = shutil.copytree(exported_once, tmp_path / "copy")
    steps = list(read_manifest(folder).schema_steps)
    with open_store(":memory:") as other:
        edit(folder, schema_steps=[*steps, "0099_from_the_future"])
        with pytest.raises(SchemaError, match="0099_from_the_future"):
            import_folder(other, folder)
        edit(folder, schema_steps=steps[:4])
        rewrite(folder, "runs", lambda table: table.drop_columns(["made"]))
        import_folder(other, folder)
        assert read_rows(other, "runs")["made"].tolist() == ["live"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "other", "version": 1}', '{"format": "slackwater-export", "version": 2}',
             '{"format": "slackwater-export", "version": 1, "schema_steps": [], "since": "", "tables": {"price": 3}}'],
)  # fmt: skip
def test_a_manifest_of_nonsense(store, exported_once, tmp_path, text):
    folder = shutil.copytree(exported_once, tmp_path / "copy")
    (folder / MANIFEST).write_text(text)
    with pytest.raises(InputError, match=MANIFEST):
        import_folder(store, folder)


def test_a_folder_that_is_none(store, tmp_path):
    with pytest.raises(InputError, match="slackwater export"):
        import_folder(store, tmp_path / "nowhere")


def test_hostile_folders_change_nothing(store, tmp_path):
    """Tables of the manifest are found by name, never by path; a folder with impossible rows is refused as a whole."""
    folder = exported(store, tmp_path)
    kept = (folder / MANIFEST).read_text()
    found = json.loads(kept)["tables"]
    cases = {
        "../price": lambda: edit(folder, tables=found | {"../price": found["price"]}),
        "schema_steps": lambda: edit(folder, tables=found | {"schema_steps": found["price"]}),
        "without series": lambda: edit(folder, tables={"markets": found["markets"], "price": found["price"]}),
        "x; DROP TABLE": lambda: rewrite(
            folder, "runs", lambda table: table.append_column("x; DROP TABLE price", table["run"])
        ),
        "lacks the column": lambda: rewrite(folder, "decisions", lambda table: table.drop_columns(["slot"])),
        "'price_usd' of string": lambda: rewrite(
            folder, "price", lambda t: t.set_column(3, "price_usd", pa.array(["much"] * t.num_rows))
        ),
        "'sid' of string": lambda: rewrite(
            folder,
            "price",
            lambda t: t.set_column(
                0, "sid", pa.array(["1) TO 'x'; COPY (SELECT 1) TO 'evil.csv'; --"] * t.num_rows)
            ),
        ),
        "'sid' of list": lambda: rewrite(
            folder, "series", lambda t: t.set_column(0, "sid", pa.array([[1]] * t.num_rows))
        ),
        "'sid' of int64": lambda: rewrite(
            folder, "series", lambda t: t.set_column(0, "sid", t["sid"].cast(pa.int64()))
        ),
        "'observed_at' of timestamp": lambda: rewrite(
            folder,
            "price",
            lambda t: t.set_column(1, "observed_at", t["observed_at"].cast(pa.timestamp("us"))),
        ),
        "a text of": lambda: rewrite(
            folder,
            "runs",
            lambda t: t.set_column(0, "run", pa.array(["x" * (LONGEST_TEXT + 1)] * t.num_rows)),
        ),
    }
    with open_store(":memory:") as other:
        for words, change in cases.items():
            keep = {path: path.read_bytes() for path in folder.iterdir()}
            change()
            with pytest.raises(InputError, match=words):
                import_folder(other, folder)
            for path, content in keep.items():
                path.write_bytes(content)
        assert not any(everything(other).values())
    assert len(everything(store)["price"]) == 30
    assert not list(tmp_path.rglob("evil.csv"))


def cell(table, column, row, value):
    """Return the table with one value changed."""
    values = table[column].to_pylist()
    values[row] = value
    place = table.schema.get_field_index(column)
    return table.set_column(place, column, pa.array(values, table.schema.field(column).type))


BAD_CELLS = [
    ("price", "price_usd", float("nan"), "price_usd is not finite"),
    ("price", "price_usd", float("-inf"), "price_usd is not finite"),
    ("price", "price_usd", -1.0, "price_usd is negative"),
    ("price", "price_usd", 0.0, "price_usd is a placeholder, not a price"),
    ("price", "on_demand_usd", 0.0, "on_demand_usd is not a price"),
    ("price", "known_at", T0 - DAY, "known_at is before observed_at"),
    ("price", "observed_at", pd.Timestamp("2300-01-01", tz="UTC"), "observed_at is outside 1900 to 2200"),
    ("price", "sid", 77, "its row of series is missing or was set aside"),
    ("availability", "available", -1, "available is not a whole number >= 0"),
    ("availability", "available", 2_000_000_000, "available is more than 1,000,000 instances"),
    ("availability", "capacity", 2_000_000_000, "capacity is more than 1,000,000 instances"),
    ("availability", "gap_seconds", 0.0, "gap_seconds is not a positive number"),
    ("forecasts", "q50", float("inf"), "q50 is not a number"),
    ("vintages", "horizon", 1_000_000_000, "horizon is out of range"),
    ("jobs", "spec", "{", "spec: no JSON"),
    ("jobs", "spec", "[" * 100_000, "spec: no JSON"),
    ("jobs", "spec", "3", "spec: a JSON value where an object is expected"),
    ("terms", "spec", "[]", "spec: a JSON list where an object is expected"),
    ("decisions", "details", "nonsense", "details: no JSON"),
    ("decisions", "spot", -3, "spot is not within 0 to 1,000,000"),
    ("decisions", "job", "a\x1b[2Jb", "job has a character that cannot be printed"),
    ("outcomes", "allocations", "{}", "allocations: a JSON object where a list is expected"),
    ("runs", "details", "{'a': 1}", "details: no JSON"),
    ("runs", "run", "r" * 2000, "run is longer than 1000"),
    ("fetches", "watermark", "", None),
    ("reports", "progress", float("nan"), "progress is not a number"),
]


#: Tables that `fill` gives many rows: each of their bad cells spoils a row of its own.
LONG = ("price", "availability")


def rounds_of(cells):
    """Return the bad cells in rounds, each with its row: one cell a round of a short table, and none that sets rows
    of another table aside.
    """
    rounds = []
    for bad in cells:
        table = "vintages" if bad[0] == "forecasts" else bad[0]
        for taken in rounds:
            if table in LONG or table not in taken:
                break
        else:
            taken = {}
            rounds.append(taken)
        own = taken.setdefault(table, [])
        own.append((*bad, len(own)))
    return [list(taken.values()) for taken in rounds]


@pytest.mark.parametrize("spoiled", rounds_of(BAD_CELLS))
def test_a_bad_row_costs_itself_only(exported_once, tmp_path, spoiled):
    """Other rows are imported, and the reasons are counted."""
    folder = shutil.copytree(exported_once, tmp_path / "copy")
    for table, column, value, _, row in chain(*spoiled):
        rewrite(folder, table, partial(cell, column=column, row=row, value=value))
    with open_store(":memory:") as other:
        done = import_folder(other, folder)
        for (table, *_), reasons in ((cells[0], [bad[3] for bad in cells if bad[3]]) for cells in spoiled):
            rows = read_manifest(exported_once).tables[table].rows - len(reasons)
            assert done[table].reasons == Counter(reasons)
            assert done[table].added == rows
            assert other.execute(f"SELECT count(*) FROM {table}") == [(rows,)]


def test_rows_that_refer_to_a_bad_row_are_set_aside_with_it(exported_once, tmp_path):
    folder = shutil.copytree(exported_once, tmp_path / "copy")
    rewrite(folder, "markets", lambda t: cell(t, "zone", 0, "a/b"))
    with open_store(":memory:") as other:
        done = import_folder(other, folder)
        orphaned = {
            "its row of markets is missing or was set aside",
            "its row of series is missing or was set aside",
        }
        assert set(done["series"].reasons) | set(done["price"].reasons) == orphaned
        assert done["decisions"].added == 2
        assert other.execute("SELECT count(*) FROM price") == [(0,)]


def test_fitted_models_are_not_imported(exported_once):
    with open_store(":memory:") as other:
        assert "fitted" not in import_folder(other, exported_once)
        assert other.execute("SELECT count(*) FROM fitted") == [(0,)]


def test_a_link_is_no_file_of_an_export(exported_once, tmp_path):
    folder = shutil.copytree(exported_once, tmp_path / "copy")
    moved = (folder / "price.parquet").rename(tmp_path / "elsewhere.parquet")
    (folder / "price.parquet").symlink_to(moved)
    with open_store(":memory:") as other, pytest.raises(InputError, match=r"no file .*price\.parquet"):
        import_folder(other, folder)


STATEMENTS = (
    "COPY (SELECT 1) TO '{out}'",
    "ATTACH '{out}' AS other",
    "SELECT * FROM read_text('/etc/hostname')",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM glob('/*')",
    "EXPORT DATABASE '{out}'",
    "INSTALL httpfs",
    "LOAD '/tmp/x.duckdb_extension'",
    "SET enable_external_access = true",
    "SET allowed_paths = ['/']",
    "SET GLOBAL lock_configuration = false",
)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_no_statement_reaches_a_file_or_loosens_the_settings(tmp_path, statement):
    out = tmp_path / "out"
    with open_store(tmp_path / "w.duckdb") as file, open_store(":memory:") as memory:
        for store in (file, memory):
            with pytest.raises(StoreError):
                store.execute(statement.format(out=out))
    with open_reader(tmp_path / "w.duckdb") as reader, pytest.raises(StoreError):
        reader.execute(statement.format(out=out))
    assert not out.exists()


def test_names_with_quotes(store, tmp_path):
    folder = tmp_path / "it's; DROP TABLE price; --"
    append(store, prices(price_row(T0, 1.0, source="o'brien")), source="t")
    write_rows(store, "jobs", [some_row(store, "jobs", "o'brien", T0)])
    export_store(store, folder)
    with open_store(":memory:") as other:
        import_folder(other, folder)
        assert everything(other) == everything(store)


def test_nothing_is_written_over(store, tmp_path):
    (tmp_path / "out").mkdir()
    export_store(store, tmp_path / "out")
    with pytest.raises(InputError, match="exists"):
        export_store(store, tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="exists"):
        export_store(store, tmp_path / "file")
    with pytest.raises(StoreError, match="cannot write"):
        export_store(store, tmp_path / "file" / "deeper")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]


def test_an_export_that_fails_leaves_nothing(store, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    fill(store)
    monkeypatch.setattr("slackwater.warehouse.exchange.file_hash", full)
    with pytest.raises(StoreError, match="No space left"):
        export_store(store, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    export_store(store, tmp_path / "out")


def test_a_reader_can_export_while_a_writer_works(tmp_path):
    path = tmp_path / "w.duckdb"
    with open_store(path) as store:
        fill(store)
    with open_store(path) as store:
        store.execute("DELETE FROM price")
        from slackwater.warehouse.store.connection import open_reader

        with open_reader(path) as reader:
            assert export_store(reader, tmp_path / "out").tables["price"].rows == 30


def test_days_are_times(store, tmp_path):
    fill(store)
    assert export_store(store, tmp_path / "out", since=T0 + DAY).tables["price"].rows == 6


@pytest.mark.parametrize("since", [None, T0 + pd.Timedelta("9D")])
def test_a_view_without_rows_has_a_file_of_its_columns(store, tmp_path, since):
    """A glob of a tool that finds no file is an error, not an empty table."""
    fill(store)
    store.execute("CREATE VIEW prices AS SELECT observed_at, price_usd FROM price")
    store.execute("CREATE VIEW series_names AS SELECT sid FROM series WHERE false")
    export_store(store, tmp_path / "out", views={"prices": "observed_at", "series_names": ""}, since=since)
    for name, columns, rows in (
        ("prices", ["observed_at", "price_usd", "day"], 0 if since else 30),
        ("series_names", ["sid"], 0),
    ):
        table = pa.dataset.dataset(tmp_path / "out" / "views" / name, partitioning="hive").to_table()
        assert (table.column_names, table.num_rows) == (columns, rows)


def test_work_of_an_older_folder_keeps_its_meaning(store, tmp_path):
    """Before a schema step, work in "gpu_hours" counted instance-hours: rows of an older folder are converted."""
    write_rows(store, "jobs", [some_row(store, "jobs", "lab", T0)])
    for name, market in (
        ("large", "aws/us-east-1/us-east-1a/p4d.24xlarge"),
        ("single", "gcp/r/z/a3-highgpu-1g"),
    ):
        text = json.dumps(
            {"name": name, "market": market, "workload": {"amount": 320.0, "unit": "gpu_hours"}}
        )
        store.execute(
            "INSERT INTO jobs SELECT ? AS name, market, source, ? AS spec, * EXCLUDE (name, market, source, spec) "
            "FROM jobs LIMIT 1",
            [name, text],
        )
    export_store(store, tmp_path / "new", tables=["jobs"])
    folder = shutil.copytree(tmp_path / "new", tmp_path / "old")
    steps = list(read_manifest(folder).schema_steps)
    edit(folder, schema_steps=steps[: steps.index("0011_units")])
    found = {}
    for name in ("new", "old"):
        with open_store(":memory:") as other:
            done = import_folder(other, tmp_path / name)
            found[name] = {
                job: json.loads(spec)["workload"]["unit"]
                for job, spec in other.execute(
                    "SELECT name, spec FROM jobs WHERE name IN ('large', 'single')"
                )
            }
            assert done["jobs"].brought_up == (name == "old")
            again = import_folder(other, tmp_path / name)
            assert again["jobs"].added == 0
    assert found == {
        "new": {"large": "gpu_hours", "single": "gpu_hours"},
        "old": {"large": "instance_hours", "single": "gpu_hours"},
    }
