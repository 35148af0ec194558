"""An exception raised by a signal handler while DuckDB works propagates unchanged, not as a warehouse error."""

import signal

import numpy as np
import pyarrow as pa
import pytest
from forms_kit import quick_first
from storeprocess import run_python

from slackwater.warehouse.store.connection import open_store

LONG = "SELECT count(*) AS n FROM range(500000000) AS t(x) WHERE x % 7 = 3"


class TimeIsUp(BaseException):
    """Exception as the engine's, which no library may catch as an ordinary error."""


def raising(*_):
    raise TimeIsUp


@pytest.fixture
def soon():
    before = signal.signal(signal.SIGALRM, raising)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.1)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("how", ["execute", "arrays", "arrow"])
def test_a_time_out_during_a_statement_goes_on_as_it_is(tmp_path, soon, how):
    with open_store(tmp_path / "w.duckdb") as store:
        soon()
        with pytest.raises(TimeIsUp):
            getattr(store, how)(LONG)
        assert store.execute("SELECT 1") == [(1,)], "the store works on"


@pytest.mark.parametrize("moments", quick_first([25, 100]))
def test_a_time_out_while_duckdb_reads_a_table_of_python_goes_on_as_it_is(tmp_path, soon, moments):
    """In Python code that DuckDB calls, it reports the exception by its name only."""

    def read_until(store, moment):
        signal.setitimer(signal.ITIMER_REAL, moment)
        while True:
            store.execute("SELECT sum(x) FROM few")

    table = pa.table({"x": np.arange(100)})
    with open_store(tmp_path / "w.duckdb") as store, store.registered("few", table):
        for moment in np.random.default_rng(5).uniform(0.0005, 0.01, moments):
            with pytest.raises(TimeIsUp):
                read_until(store, moment)


def test_a_transaction_that_is_interrupted_keeps_nothing(tmp_path, soon):
    def half(store):
        with store.transaction():
            store.execute("INSERT INTO markets VALUES (1, 'aws', 'r', 'z', 'x')")
            store.execute(LONG)

    with open_store(tmp_path / "w.duckdb") as store:
        soon()
        with pytest.raises(TimeIsUp):
            half(store)
        assert store.execute("SELECT count(*) FROM markets") == [(0,)]


BROKEN_OFF = """
import signal, sys
from slackwater.warehouse.store.connection import open_store

class TimeIsUp(BaseException):
    pass

def raising(*_):
    raise TimeIsUp

signal.signal(signal.SIGALRM, raising)
for how, sql in (
    ("execute", "CREATE TABLE u AS SELECT * FROM range(30000000) AS t(x) ORDER BY hash(x)"),
    ("execute", "SELECT count(*) AS n FROM range(500000000) AS t(x) WHERE x % 7 = 3"),
    ("arrow", "SELECT count(*) AS n FROM range(500000000) AS t(x) WHERE x % 7 = 3"),
):
    try:
        with open_store(sys.argv[1]) as store:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            getattr(store, how)(sql)
        sys.exit(f"{how} was not broken off")
    except TimeIsUp:
        pass
    with open_store(sys.argv[1]) as store:
        assert store.execute("SELECT count(*) FROM markets") == [(0,)]
"""


def test_a_warehouse_in_which_a_statement_was_broken_off_can_be_opened_again(tmp_path):
    """Uses a separate process: on failure DuckDB waits for ever and ignores signals."""
    process = run_python(BROKEN_OFF, tmp_path / "w.duckdb")
    _, said = process.communicate()
    assert process.returncode == 0, said
