"""Settings needed before NumPy and Prefect are loaded, and the order of the files."""

import gc
import os
import shutil
import sys
from collections import OrderedDict
from contextlib import nullcontext, suppress
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
from cpu_seconds import (  # noqa: F401 - hooks
    pytest_addoption,
    pytest_runtest_logreport,
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_terminal_summary,
)

from slackwater.flows.engine.run import ENGINE_SETTINGS

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Workers of one run share the cores already: additional DuckDB threads only wait for each other. `make test-all`
# sets two threads, so that the work of several is tested as well.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("SLACKWATER_THREADS", "1")
# Wide enough that no heading wraps, whatever the terminal or worker; tests of widths set it themselves.
os.environ["COLUMNS"] = "200"
# For the test that loads the engine first: its server may be slow to start next to the tests of other processes.
for name, value in ENGINE_SETTINGS.items():
    os.environ.setdefault(name, value)

# Python's garbage collector runs after every 700 objects, over all objects of the tests: a tenth of their time.
# This makes it rarer.
gc.set_threshold(50_000, 20, 20)

HERE = Path(__file__).parent
#: Number of this worker, and of all workers of the run.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

#: Number of snapshots that `open_snapshots` keeps open.
SNAPSHOTS = 4
#: Tests with many commands on a file; none is about opening and closing it.
OF_COMMANDS = (
    "flows/backfill/test_backfill.py",
    "flows/command/test_cli.py",
    "flows/exchange/",
    "flows/feeds/",
    "flows/jobs/",
    "flows/monitoring/test_status_command.py",
    "flows/plans/",
    "flows/turn/test_prices_only.py",
    "flows/turn/test_turn.py",
    "warehouse/exchange/",
)
#: Slow files, in the order in which workers take them; the short files after them end at about the same time.
#: The first compiles nearly all kernels in a process, so that their common parts are compiled once. The next eleven, which
#: take about as long, need none of these kernels: a second process that needs them meanwhile compiles the common parts too.
#: The second file with a Prefect server starts when the first has kept the tables of its server.
FIRST = (
    "flows/turn/test_moving_jobs.py",
    "contract/test_predictors.py",
    "warehouse/exchange/test_exchange.py",
    "contract/test_source_rows.py",
    "flows/accuracy/test_accuracy_command.py",
    "warehouse/observations/test_store_ingest.py",
    "flows/feeds/test_feeds.py",
    "faults/test_hostile_files.py",
    "warehouse/store/test_snapshots.py",
    "warehouse/asof/test_store_reads.py",
    "flows/accuracy/test_accuracy_blocks.py",
    "faults/test_kills.py",
    "flows/engine/test_runs.py",
    "contract/test_plugin_package.py",
    "flows/ui/test_ui.py",
    "flows/backfill/test_backfill.py",
    "flows/plans/test_plan_of_a_turn.py",
    "flows/engine/test_engine.py",
    "flows/command/test_cli.py",
    "contract/test_policies.py",
    "flows/jobs/test_job_report.py",
    "flows/turn/test_prices_only.py",
    "flows/acting/test_act_command.py",
    "flows/monitoring/test_alarms.py",
    "flows/turn/report/test_report.py",
    "flows/turn/test_fitting.py",
    "flows/requests/test_fill.py",
    "flows/schemas/test_tables.py",
    "flows/turn/test_turn.py",
    "flows/backtest/test_backtest.py",
    "flows/jobs/test_job_change.py",
    "flows/delivery/test_advice_delivery.py",
    "flows/jobs/test_units_commands.py",
    "faults/test_absurd_values.py",
    "flows/monitoring/test_status_command.py",
    "flows/engine/test_deployments.py",
    "test_without_prefect.py",
    "forecasting/predictors/test_real_series.py",
    "flows/turn/test_competing_jobs.py",
    "flows/command/test_terminal_width.py",
    "test_library.py",
    "test_wheel.py",
    "optimization/kernels/test_compiling.py",
)


@pytest.fixture(scope="session")
def empty_warehouse(tmp_path_factory):
    """Return the file of a new warehouse, created as usual: tables, views and column comments."""
    from slackwater.warehouse.store.connection import open_store

    file = tmp_path_factory.mktemp("empty") / "w.duckdb"
    open_store(file).close()
    return file


@pytest.fixture(scope="session")
def whole_schema():
    """Return statements that create, in a new database, the tables that all steps of the schema lead to."""
    import duckdb

    from slackwater.warehouse.store.schema import migrate

    with duckdb.connect(":memory:") as new:
        migrate(new)
        tables = new.execute("SELECT sql FROM duckdb_tables() ORDER BY table_oid").fetchall()
        steps = new.execute("SELECT position, name FROM schema_steps ORDER BY position").fetchall()
    rows = ", ".join(map(str, steps))
    return "\n".join(
        ("BEGIN;", *(sql for (sql,) in tables), f"INSERT INTO schema_steps VALUES {rows}; COMMIT;")
    )


class InMemory:
    """A new warehouse in memory as a further database of a DuckDB that is already open.

    To start DuckDB takes 20 ms, which tests would do a thousand times; a further database takes 0.5 ms.
    """

    _numbers = count()

    def __init__(self, running, whole_schema):
        self._running, self._name = running, f"memory_{next(self._numbers)}"
        self._cursor = running.cursor()
        self._cursor.execute(f"ATTACH ':memory:' AS {self._name}; USE {self._name}")
        self._cursor.execute(whole_schema)

    def __getattr__(self, name):
        return getattr(self._cursor, name)

    def close(self):
        self._cursor.close()
        if self._name:
            self._running.execute(f"DETACH {self._name}")
            self._name = ""


@pytest.fixture(scope="session")
def running():
    """Yield the open DuckDB of a worker's warehouses in memory, by the options that they are opened with."""
    opened = {}
    yield opened
    for connection in opened.values():
        connection.close()


@pytest.fixture(autouse=True, scope="module")
def new_warehouses(empty_warehouse, whole_schema, running):
    """Create new warehouses without the steps of their schema: files as copies of the worker's first, in memory all tables at once.

    The steps take 30 ms, the comments of a file another 50 ms, and the tests create hundreds. Tests of
    file creation create warehouses as the program does, and so does every process that a test starts.
    """
    import duckdb

    from slackwater.warehouse.store import connection

    Opening = connection.Opening
    plain = Opening.unlocked

    def copied(opening):
        file = Path(opening.name)
        if not (file.exists() and file.stat().st_size):
            shutil.copyfile(empty_warehouse, file)

    def unlocked(opening, file, *, read_only):
        if file != ":memory:":
            return plain(opening, file, read_only=read_only)
        if opening not in running:
            running[opening] = duckdb.connect(file)
            opening._set_up(running[opening])
        made = InMemory(running[opening], whole_schema)
        with connection.closed_on_error(made):
            connection.migrate(made)  # no step is left; it checks the columns
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Opening, "_make", copied)
        patch.setattr(Opening, "unlocked", unlocked)
        # No test's folder has to survive a power failure; processes that a test starts do wait for the disk.
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="module")
def open_snapshots():
    """Keep the latest snapshots of a module open: opening a file takes DuckDB 25 ms, again in the same process 2 ms.

    Most commands of a test read the snapshot that the command before has read. Its content never changes, so its
    markets are listed once for each time: DuckDB plans that query for 25 ms.
    """
    import duckdb

    from slackwater.warehouse import listing
    from slackwater.warehouse.store.connection import Opening

    plain, held = Opening.unlocked, OrderedDict()
    list_at, listings = listing._list_at_times, {}

    def unlocked(opening, file, *, read_only):
        connection = plain(opening, file, read_only=read_only)
        if read_only and Path(file).parent.suffix == ".read" and file not in held:
            held[file] = duckdb.connect(file, read_only=True)
            if len(held) > SNAPSHOTS:
                held.popitem(last=False)[1].close()
        return connection

    def list_once(store, *times):
        if store.snapshot is None:
            return list_at(store, *times)
        key = (store.snapshot, times)
        if key not in listings:
            listings[key] = list_at(store, *times)
        return listings[key].copy()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Opening, "unlocked", unlocked)
        patch.setattr(listing, "_list_at_times", list_once)
        yield
    for connection in held.values():
        connection.close()


@pytest.fixture(autouse=True, scope="module")
def files_stay_open(request, new_warehouses):
    """Keep files open between the commands of quick tests."""
    from open_files import open_files

    place = request.path.relative_to(HERE).as_posix()
    is_quick = "not slow" in request.config.option.markexpr
    with open_files() if is_quick and place.startswith(OF_COMMANDS) else nullcontext():
        yield


@pytest.fixture(scope="module")
def quick_settings(tmp_path_factory):
    """Set a pool of four policies and the least number of sampled paths, for commands whose tests are about neither."""
    from test_turn import LIGHT

    pool = tmp_path_factory.mktemp("pool") / "pool.toml"
    pool.write_text(LIGHT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLACKWATER_POOL", str(pool))
        patch.setenv("SLACKWATER_RISK_PATHS", "10")
        yield


@pytest.fixture(scope="module")
def light_planner():
    """Plan with the forecaster that needs no fit, in tests that are not about forecasts: a plan without a turn fits it anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLACKWATER_PLANNER", "last_value")
        yield


@pytest.fixture
def store():
    """Yield an empty warehouse in memory."""
    from slackwater.warehouse.store.connection import open_store

    with open_store(":memory:") as opened:
        yield opened


def pytest_collection():
    """In a new clone the tests and libraries have no bytecode yet: workers that begin at different files share the work."""
    files = sorted(HERE.rglob("test_*.py"))
    first = len(files) * WORKER // WORKERS
    for file in files[first:] + files[:first] if WORKER else ():
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        with suppress(Exception, pytest.skip.Exception):  # reported when it is collected
            import_module(file.stem)


def pytest_collection_finish():
    """Objects imported and collected by now live to the end, so the garbage collector may skip them."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Otherwise the longest tests, alone in their files, would run last on one worker while the others idle."""
    places = {HERE / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(FIRST)))
