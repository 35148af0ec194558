"""Settings that must be there before NumPy and Prefect are loaded, and the order of the files."""

import gc
import os
import shutil
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from flows.engine.run import ENGINE_SETTINGS

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Workers of one run share the cores already: threads of DuckDB beside them only wait for one another. Without workers, as
# `make test-all` runs, DuckDB has as many as it likes.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("SLACKWATER_THREADS", "1")
# So wide that no heading wraps, whatever terminal or worker the tests run in; tests of widths set their own.
os.environ["COLUMNS"] = "200"
# Whichever test loads the engine first: its server may be slow to start beside the tests of other processes.
for name, value in ENGINE_SETTINGS.items():
    os.environ.setdefault(name, value)

# Python looks for garbage after every 700 objects, in all that tests have made: a tenth of their time. It still looks, less often.
gc.set_threshold(50_000, 20, 20)

HERE = Path(__file__).parent
#: Every second worker of a run begins at the other end where two would do the same work side by side.
OTHER_END = bool(int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2)

#: Files that take long, in the order in which workers take them; the short files after them end about together. The first go
#: to two workers in turn, which so compile other kernels side by side.
FIRST = (
    "contract/test_policies.py",
    "contract/test_predictors.py",
    "warehouse/observations/test_store_ingest.py",
    "warehouse/exchange/test_exchange.py",
    "flows/engine/test_deployments.py",
    "studies/single_instance/test_single_instance_tables.py",
    "flows/backfill/test_backfill.py",
    "flows/engine/test_engine.py",
    "flows/turn/test_turn.py",
    "flows/turn/test_competing_jobs.py",
    "studies/experiments/test_experiment_selection.py",
    "test_library.py",
    "test_wheel.py",
    "flows/accuracy/test_accuracy_command.py",
    "optimization/fleet/test_competition.py",
    "faults/test_kills.py",
    "flows/ui/test_ui.py",
    "flows/monitoring/test_status_command.py",
    "flows/monitoring/test_alarm_events.py",
    "flows/accuracy/test_accuracy_page.py",
    "flows/feeds/test_feeds.py",
    "optimization/kernels/test_compiling.py",
)


@pytest.fixture(scope="session")
def empty_warehouse(tmp_path_factory):
    """The file of a new warehouse, made as every first one is: tables, views and the words of every column."""
    from warehouse.store.connection import open_store

    file = tmp_path_factory.mktemp("empty") / "w.duckdb"
    open_store(file).close()
    return file


@pytest.fixture(autouse=True, scope="module")
def new_warehouses(empty_warehouse):
    """New warehouses of a worker are copies of its first one: the words alone take 50 ms, and the tests make hundreds.

    Where the making of a file is what is tested it is made as the program does, and so does every process that a test starts.
    """
    from warehouse.store.connection import Opening

    def copied(opening):
        file = Path(opening.name)
        if not (file.exists() and file.stat().st_size):
            shutil.copyfile(empty_warehouse, file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Opening, "_make", copied)
        yield


def pytest_collection():
    """In a new clone neither the tests nor the libraries have bytecode yet: two workers that import them meet in the middle."""
    for file in sorted(HERE.rglob("test_*.py"), reverse=True) if OTHER_END else ():
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        with suppress(Exception, pytest.skip.Exception):  # said when it is collected
            import_module(file.stem)


def pytest_collection_finish():
    """What has been imported and collected by now stays to the end: no later look for garbage goes through it again."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Without this the longest tests, alone in their files, would be the last ones of one worker while the others idle."""
    places = {HERE / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(FIRST)))
