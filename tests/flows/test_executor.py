"""Work on other processes and on a Dask cluster gives the plain results; a scheduler imports nothing of the program."""

import socket
import subprocess
import sys
import time
from contextlib import contextmanager, nullcontext

import pytest

from slackwater.flows import executor as executor_module
from slackwater.flows.executor import ADDRESS, Executor, executor_fan, fan_out
from slackwater.flows.payload import pack_calls, results_of, run_packed
from slackwater.warehouse.errors import WorkerError

#: Modules that a scheduler must not import: of the program, and heavy.
HEAVY = (
    "duckdb",
    "numba",
    "prefect",
    "slackwater.flows.turn",
    "slackwater.optimization",
    "slackwater.warehouse",
)


def squared(number):
    return number * number


def scaled(item, shared):
    return item * shared


def test_packed_calls_are_opaque_and_give_their_results():
    calls = [{"number": number} for number in range(5)]
    assert results_of(run_packed(pack_calls(squared, calls))) == [0, 1, 4, 9, 16]


def test_the_module_that_a_scheduler_imports_imports_nothing():
    code = f"import sys, slackwater.flows.payload; print([one for one in {HEAVY} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_processes_return_results_in_the_order_of_the_calls(whole):
    with executor_fan(Executor(kind="processes", workers=2), together=(squared,), whole=whole) as fan:
        assert fan(squared, [{"number": number} for number in range(9)]) == [n * n for n in range(9)]


def test_a_scheduler_that_does_not_answer_is_named(monkeypatch):
    monkeypatch.setattr("slackwater.flows.executor.CONNECT_SECONDS", 0.2)
    with (
        executor_fan(Executor(kind="dask", address="tcp://127.0.0.1:9")) as fan,
        pytest.raises(WorkerError, match=f"{ADDRESS}=tcp://127.0.0.1:9: no Dask scheduler answers"),
    ):
        fan(squared, [{"number": 2}])


def test_replays_of_studies_run_on_the_cluster(monkeypatch):
    seen = []

    def fan(function, calls):
        seen.append(len(calls))
        return [function(**call) for call in calls]

    monkeypatch.setattr(executor_module, "chosen_executor", lambda: Executor(kind="dask"))
    monkeypatch.setattr(executor_module, "executor_fan", lambda executor: nullcontext(fan))
    assert list(fan_out(scaled, range(100), 3)) == [3 * one for one in range(100)]
    assert seen == [25]


@contextmanager
def documented_cluster(folder):
    """Start the scheduler and two workers with the commands of docs/growing.md; yields the address and the scheduler's log."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    address, dask = f"tcp://127.0.0.1:{port}", [sys.executable, "-m", "dask"]
    worker = [
        *dask,
        "worker",
        address,
        "--nthreads",
        "1",
        "--no-dashboard",
        "--preload",
        "slackwater.flows.turn.stages",
    ]
    commands = [
        [*dask, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
        worker,
        worker,
    ]
    processes = []
    with (folder / "dask.log").open("wb") as log:
        try:
            for command in commands:
                processes.append(subprocess.Popen(command, cwd=folder, stdout=log, stderr=log))
            yield address
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(60)


@pytest.mark.slow
def test_a_turn_and_a_backfill_on_a_cluster_of_its_own_processes(tmp_path, monkeypatch):
    """Run the documented commands; the tables equal those of this process, and the scheduler has imported a leaf only."""
    import pandas as pd
    from distributed import Client
    from make import make_turn
    from past_jobs import past_jobs
    from test_turn import AT, dump, small_settings

    from slackwater.flows.backfill.run import Backfill, backfill, slots_between
    from slackwater.flows.config import read_settings
    from slackwater.flows.turn.stages import whole_turn
    from slackwater.warehouse.store.connection import open_store

    settings, step = read_settings(small_settings(tmp_path)), pd.Timedelta("30min")

    def tables(name, fan=None):
        db = tmp_path / f"{name}.duckdb"
        with open_store(db) as store:
            given = {} if fan is None else {"fan": fan}
            turn = make_turn(store, AT, settings, **given)
            whole_turn(turn, data=None, requests=past_jobs(2, before=AT), report=None)
        backfill(
            Backfill(
                db=db,
                slot_range=slots_between(AT + step, AT + 2 * step, slot=step),
                settings=settings,
                workers=1,
            )
        )
        return dump(db)

    here = tables("here")
    with documented_cluster(tmp_path) as address:
        with Client(address, timeout=120, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=300)
            began = time.monotonic()
            monkeypatch.setenv("SLACKWATER_RUNNER", "dask")
            monkeypatch.setenv(ADDRESS, address)
            with executor_fan(executor_module.chosen_executor()) as fan:
                assert tables("cluster", fan) == here
            executor_module._client(executor_module.chosen_executor()).close()
            # A lambda travels by value: the scheduler would import the module of a named function.
            modules, resident = client.run_on_scheduler(
                lambda: (sorted(sys.modules), sys.modules["psutil"].Process().memory_info().rss)
            )
            assert len(client.scheduler_info()["workers"]) == 2, "a worker was lost"
        print(f"the scheduler holds {resident / 1e6:.0f} MB")
        assert not {module for module in modules if module.startswith(HEAVY)}
        assert resident < 250e6
        assert time.monotonic() - began < 600
