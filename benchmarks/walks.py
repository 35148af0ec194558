"""Walks: numbers of modules and functions entered by a turn, a decision, an ingest and other tasks.

A module of the product is entered when any of its functions is called, in any thread; code that
runs during an import does not count. Compiled functions count if Python code calls them, or if such
a compiled function calls them. The figures include the modules and lines of every folder. Each
figure is a pair: as stored in ``walks-before.json``, and now.

``python -m benchmarks.walks [WALK ...]`` lists the modules entered by the named walks or all
(``turns``, ``decision``, ...); with ``--keep`` the figures of all walks are stored in that file.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pandas as pd
from numba.core.dispatcher import Dispatcher

from benchmarks import replay as one_job
from benchmarks.forecasting import COUNT_SOURCES, histories
from benchmarks.turn import AT, tidy_markets
from slackwater.flows.backfill.run import Backfill, backfill, slots_between
from slackwater.flows.cli import PROGRAM
from slackwater.flows.config import Settings
from slackwater.flows.turn.context import Turn, run_id_of
from slackwater.flows.turn.stages import whole_turn
from slackwater.forecasting import forecast as issue
from slackwater.optimization.job.request import JobRequest, read_request
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.run import replay
from slackwater.warehouse.store.connection import open_store

STEP = pd.Timedelta(minutes=30)
#: Small settings that still run all code: every forecaster, the whole pool, several markets.
SETTINGS = Settings(max_markets=3, measured_origins=4, history_days=7, simulated_days=10)
#: A policy of the default pool.
AHAP = "AHAP(5,5,0.9,expected)"
Traced = Callable[..., Any]


# The walks: all calls into the product.


def turns(traced: Traced, scratch: Path, _data: Path) -> None:
    """Run two turns on the simulated market without the engine; the first also learns from an ended job."""
    past = read_request(Path(__file__).parents[1] / "examples" / "llama-8b-lora.toml")
    past = past.with_place(at=AT - 26 * STEP, market="simulated/east/east-a/h100", source=None)
    for name, at, requests in (("first turn", AT, [past]), ("second turn", AT + STEP, [])):
        with traced(name):
            _turn(scratch, at, requests)


def _turn(scratch: Path, at: pd.Timestamp, requests: Sequence[JobRequest] = ()) -> None:
    with open_store(scratch / "w.duckdb") as store:
        turn = Turn(store=store, at=at, settings=SETTINGS, run_id=run_id_of(at))
        whole_turn(turn, data=None, requests=requests, report=scratch / "report.html")


def decision(traced: Traced, _scratch: Path, _data: Path) -> None:
    """Run the decisions of an AHAP policy over the slots of a job."""
    case = one_job.case(1)
    with traced("AHAP decision", below="decide"):
        replay(policy_named(AHAP), case.job, case.window, forecasts=case.forecasts, record=case.record)


def forecast(traced: Traced, _scratch: Path, data: Path) -> None:
    """Estimate and issue a forecast of a market."""
    history = next(histories(data, COUNT_SOURCES))
    known = history.until(history.slots[700])
    with traced("combined forecast"):
        issue(known, "combined", horizon=12)


def ingest(traced: Traced, scratch: Path, _data: Path) -> None:
    """Ingest a folder with two tidy tables into a new warehouse."""
    folder = scratch / "tidy"
    folder.mkdir()
    tidy_markets(folder, AT, markets=7, days=2)
    with traced("ingest"):
        PROGRAM.run(["ingest", "tabular", str(folder), "--db", str(scratch / "w.duckdb"), "--json"])


def backfilled(traced: Traced, scratch: Path, _data: Path) -> None:
    """Backfill a slot in a new warehouse, with work for every stage."""
    with traced("backfilled slot"):
        backfill(
            Backfill(
                db=scratch / "w.duckdb",
                slot_range=slots_between(AT, AT, slot=STEP),
                settings=SETTINGS,
                workers=1,
            )
        )


def experiment(traced: Traced, scratch: Path, data: Path) -> None:
    """Run the pool experiment with ``--fast``, and write its page."""
    with traced("pool experiment"):
        words = ["experiment", "pool", "--data", str(data), "--fast", "--json", "--processes", "1"]
        PROGRAM.run([*words, "--html", str(scratch / "pool.html")])


WALKS = (turns, decision, forecast, ingest, backfilled, experiment)

# Counting.

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("warehouse", "forecasting", "optimization", "flows")
BEFORE = Path(__file__).with_name("walks-before.json")


class Trace:
    """Trace of the product's functions called while it is open; with ``below`` only those called by that function."""

    def __init__(self, below: str | None = None) -> None:
        self._below = below
        self._entered: set[tuple[str, str]] = set()
        # By id, as comparing code objects is slow; the reference keeps the object alive, so that its id stays unique.
        self._settled: dict[int, CodeType] = {}

    def __enter__(self) -> Trace:
        plain = Dispatcher.__call__

        def counted(dispatcher: Dispatcher, *args: Any, **named: Any) -> Any:
            self._compiled(dispatcher, sys._getframe(1))
            return plain(dispatcher, *args, **named)

        Dispatcher.__call__ = counted
        threading.setprofile(self._called)
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        del Dispatcher.__call__

    @property
    def modules(self) -> list[str]:
        """The files entered, as paths relative to the root."""
        return sorted({file for file, _ in self._entered})

    @property
    def functions(self) -> int:
        """The number of functions entered, without lambdas and comprehensions."""
        return sum(not name.endswith(">") for _, name in self._entered)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or id(frame.f_code) in self._settled:
            return
        code = frame.f_code
        file = product_file(code)
        if file is None or not code.co_flags & inspect.CO_OPTIMIZED:  # bodies of modules and classes
            self._settled[id(code)] = code
        elif self._counts(frame):
            self._settled[id(code)] = code
            self._entered.add((file, code.co_qualname))

    def _compiled(self, dispatcher: Dispatcher, caller: FrameType) -> None:
        if id(dispatcher.py_func.__code__) not in self._settled and self._counts(caller):
            for code in compiled_together(dispatcher):
                self._settled[id(code)] = code
                if (file := product_file(code)) is not None:
                    self._entered.add((file, code.co_qualname))

    def _counts(self, frame: FrameType | None) -> bool:
        """Return whether a call is not part of an import, and is below the function ``below`` if given."""
        beneath = self._below is None
        while frame is not None:
            code = frame.f_code
            if code.co_name == "<module>" and product_file(code) is not None:
                return False
            beneath = beneath or (code.co_name == self._below and product_file(code) is not None)
            frame = frame.f_back
        return beneath


def product_file(code: CodeType) -> str | None:
    """Return the product file of a code object, as a path relative to the root; None for other code."""
    name = code.co_filename
    if not name.startswith(f"{ROOT}{os.sep}"):
        return None
    file = Path(name).relative_to(ROOT)
    return file.as_posix() if file.parts[0] in PRODUCT else None


def compiled_together(dispatcher: Dispatcher) -> list[CodeType]:
    """Return the code of a compiled function and, recursively, of all compiled functions that it refers to."""
    found: dict[int, CodeType] = {}
    waiting = [dispatcher]
    while waiting:
        function = waiting.pop().py_func
        if id(function.__code__) not in found:
            found[id(function.__code__)] = function.__code__
            waiting += [one for one in _referenced(function) if isinstance(one, Dispatcher)]
    return list(found.values())


def _referenced(function: Any) -> Iterator[Any]:
    """Yield the objects that the names in a function refer to, including attributes of product modules."""
    named = inspect.getclosurevars(function)
    values = [*named.globals.values(), *named.nonlocals.values()]
    yield from values
    for module in filter(inspect.ismodule, values):
        if getattr(module, "__name__", "").partition(".")[0] in PRODUCT:
            yield from (getattr(module, name, None) for name in named.unbound)


def walked(walk: int, data: Path) -> dict[str, dict[str, Any]]:
    """Return the modules and functions entered by `WALKS` number ``walk``, by name."""
    found: dict[str, dict[str, Any]] = {}

    @contextmanager
    def traced(name: str, **how: str) -> Iterator[None]:
        with Trace(**how) as trace:
            yield
        found[name] = {"modules": trace.modules, "functions": trace.functions}

    with tempfile.TemporaryDirectory() as scratch, redirect_stdout(io.StringIO()):
        WALKS[walk](traced, Path(scratch), data)
    return found


def all_walked(data: Path, names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Run the named walks, or all, each in a separate process so that they share no caches."""
    found: dict[str, dict[str, Any]] = {}
    for place, walk in enumerate(WALKS):
        if not names or walk.__name__ in names:
            with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
                found |= process.submit(walked, place, data).result()
    return found


def tree() -> dict[str, dict[str, int]]:
    """Return modules and lines of the product, tests and benchmarks, in total and by folder."""
    count: dict[str, Counter[str]] = {}
    for top in (*PRODUCT, "tests", "benchmarks"):
        for file in sorted((ROOT / top).rglob("*.py")):
            lines = len(file.read_text(encoding="utf-8").splitlines())
            folder = file.parent.relative_to(ROOT).as_posix()
            for place in ("product" if top in PRODUCT else "beside it", f"{top}, all", folder):
                count.setdefault(place, Counter()).update(modules=1, lines=lines)
    return {place: dict(own) for place, own in count.items()}


def figures_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the walks and of the source tree."""
    walks = {}
    for name, own in found.items():
        layers = Counter(module.partition("/")[0] for module in own["modules"])
        walks[name] = {"modules": len(own["modules"]), **layers, "functions": own["functions"]}
    return {"walks": walks, "tree": tree()}


def beside(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return nested figures as pairs [before, after], None where a figure is missing."""
    pairs: dict[str, Any] = {}
    for key in dict.fromkeys([*after, *before]):
        old, new = before.get(key), after.get(key)
        nested = isinstance(old, dict) or isinstance(new, dict)
        pairs[key] = beside(old or {}, new or {}) if nested else [old, new]
    return pairs


def figures_json(figures: dict[str, Any]) -> str:
    """Return figures as JSON text for the file, with a line per row."""
    parts = [
        f"{json.dumps(part)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(own)}" for name, own in rows.items())
        + "\n }"
        for part, rows in figures.items()
    ]
    return "{\n " + ",\n ".join(parts) + "\n}\n"


def run(data: Path) -> dict[str, Any]:
    return beside(json.loads(BEFORE.read_text()), figures_of(all_walked(data)))


def main(words: list[str]) -> None:
    names = [word for word in words if word != "--keep"]
    found = all_walked(Path(os.environ.get("SLACKWATER_DATA", "../shared/data")), names)
    for name, own in found.items():
        print(f"{name}: {len(own['modules'])} modules, {own['functions']} functions")
        print("".join(f"  {module}\n" for module in own["modules"]), end="")
    if "--keep" in words and not names:
        BEFORE.write_text(figures_json(figures_of(found)))


if __name__ == "__main__":
    main(sys.argv[1:])
