"""One storage format: a warehouse moves between DuckDB releases. The other release is in SLACKWATER_OTHER_DUCKDB."""

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from storekit import HOUR, T0, price_row, prices

from slackwater.warehouse.errors import SchemaError
from slackwater.warehouse.exchange import compact
from slackwater.warehouse.observations import append
from slackwater.warehouse.store.connection import STORAGE_VERSION, open_reader, open_store

ROOT = Path(__file__).resolve().parents[3]
OTHER = os.environ.get("SLACKWATER_OTHER_DUCKDB", "")
needs_other = pytest.mark.skipif(
    not OTHER,
    reason="SLACKWATER_OTHER_DUCKDB names no folder with another release of DuckDB (CONTRIBUTING.md)",
)


def write(path, hour):
    with open_store(path) as store:
        append(store, prices(price_row(T0 + hour * HOUR, 1.0 + hour)), source="t")


def hours(path):
    with open_reader(path) as store:
        return [row[0] for row in store.execute("SELECT hour(observed_at) FROM price ORDER BY 1")]


def storage(path):
    with duckdb.connect(str(path), read_only=True) as connection:
        rows = connection.execute("SELECT tags FROM duckdb_databases() WHERE path IS NOT NULL").fetchall()
    return rows[0][0]["storage_version"]


def under_the_other(program, path, *, killed=False):
    """Run a program of this module's functions under the other release of DuckDB."""
    begin = f"import os, duckdb; from pathlib import Path; path = Path({str(path)!r}); from test_storage_version import *\n"
    folders = [OTHER, str(ROOT), str(Path(__file__).parent), str(ROOT / "tests" / "kits")]
    done = subprocess.run(
        [sys.executable, "-c", begin + f"assert duckdb.__version__ != {duckdb.__version__!r}\n" + program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == (-9 if killed else 0), done.stderr
    return done.stdout


def test_a_warehouse_and_its_compacted_copy_are_of_one_format(tmp_path):
    path = tmp_path / "w.duckdb"
    write(path, 0)
    assert storage(path) == f"{STORAGE_VERSION}+"
    with open_store(path) as store:
        compact(store)
    assert storage(path) == f"{STORAGE_VERSION}+"
    assert hours(path) == [0]


def test_compacting_brings_a_file_made_in_a_newer_format_into_the_common_one(tmp_path):
    path = tmp_path / "w.duckdb"
    duckdb.connect(str(path), config={"storage_compatibility_version": "v1.5.0"}).close()
    write(path, 3)
    assert storage(path) == "v1.5.0+"
    with open_store(path) as store:
        compact(store)
    assert storage(path) == f"{STORAGE_VERSION}+"
    assert hours(path) == [3]


@needs_other
def test_a_warehouse_goes_to_and_fro_between_two_releases(tmp_path):
    path = tmp_path / "w.duckdb"
    under_the_other("write(path, 0)", path)
    write(path, 1)
    assert under_the_other("write(path, 2); print(hours(path))", path) == "[0, 1, 2]\n"
    under_the_other("with open_store(path) as store:\n    compact(store)", path)
    write(path, 3)
    assert hours(path) == [0, 1, 2, 3]
    assert under_the_other("print(hours(path))", path) == "[0, 1, 2, 3]\n"


@needs_other
def test_the_log_of_a_writer_that_was_killed_is_read_by_the_other_release(tmp_path):
    path = tmp_path / "w.duckdb"
    program = "store = open_store(path); append(store, prices(price_row(T0, 1.0)), source='t'); os.kill(os.getpid(), 9)"
    under_the_other(program, path, killed=True)
    assert path.with_name("w.duckdb.wal").stat().st_size
    write(path, 1)
    assert hours(path) == [0, 1]


@needs_other
def test_a_file_in_the_other_releases_own_format_is_refused_untouched_until_that_one_compacts_it(tmp_path):
    path = tmp_path / "w.duckdb"
    under_the_other("duckdb.connect(str(path)).close(); write(path, 0)", path)
    before = path.read_bytes()
    for opened in (open_store, open_reader):
        with pytest.raises(SchemaError, match="slackwater compact"):
            opened(path).close()
    assert path.read_bytes() == before
    under_the_other("with open_store(path) as store:\n    compact(store)", path)
    write(path, 1)
    assert hours(path) == [0, 1]
