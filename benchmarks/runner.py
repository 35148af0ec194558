"""Runner of the benchmarks: each in a separate process, printed when it ends; a failure does not stop the others.

Imports, compiled code and memory of a benchmark do not affect another.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
import traceback
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import TextIO

CASES = (
    "solver", "replay", "cant_be_late", "region_windows", "ingest", "forecasting", "turn", "forecast_turn", "backtest_speed",
    "workers",
    "backfill", "moving", "world", "belief",
)  # fmt: skip
#: Run only when named, because they take long.
ON_REQUEST = ("faults", "walks", "competition", "arima", "growth")
NEEDS_DATA = {"forecasting", "backtest_speed", "walks", "competition", "arima"}


def figures(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield (path, figure) for every figure of nested results, with a dotted path."""
    pairs: list[tuple[object, object]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        pairs = [(i, item) for i, item in enumerate(value)]
    if not pairs:
        yield path, value
    for key, item in pairs:
        yield from figures(item, f"{path}.{key}" if path else str(key))


def measure(modules: Mapping[str, str], data: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Run the benchmarks ``modules``, by name, and yield the figures of each when it ends.

    For a benchmark that raised or crashed these are ``{"failed": ...}``; the traceback is printed to standard error.
    """
    for name, module in modules.items():
        if name in NEEDS_DATA and not data.is_dir():
            yield name, {"left_out": f"{data} is absent; set SLACKWATER_DATA"}
            continue
        print(f"{name} ...", file=sys.stderr, flush=True)
        # Spawned, since a forked child would inherit threads and compiled code.
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as process:
            ended = process.submit(_run, module, (data,) if name in NEEDS_DATA else ())
            error = ended.exception()
        if error is None:
            yield name, ended.result()
        else:
            traceback.print_exception(error)
            yield name, {"failed": f"{type(error).__name__}: {error}"}


def _run(module: str, given: tuple[Path, ...]) -> dict[str, object]:
    result: dict[str, object] = importlib.import_module(module).run(*given)
    return result


def report(modules: Mapping[str, str], data: Path, *, as_json: bool) -> int:
    """Run benchmarks and print their figures; return the exit code, 1 if any failed."""
    results: dict[str, object] = {"python": platform.python_version(), "cores": os.cpu_count()}
    where = sys.stderr if as_json else sys.stdout
    _print_rows(results, where)
    failed = []
    for name, found in measure(modules, data):
        results[name] = found
        _print_rows({name: found}, where)
        if "failed" in found:
            failed.append(name)
    if as_json:
        print(json.dumps(results, indent=2))
    if failed:
        print(f"{len(failed)} of {len(modules)} benchmarks failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _print_rows(found: dict[str, object], where: TextIO) -> None:
    rows = list(figures(found))
    width = max(len(path) for path, _ in rows)
    for path, figure in rows:
        print(f"{path:<{width}}  {figure}", file=where, flush=True)


def main(words: list[str]) -> int:
    """Run the benchmarks named on the command line, or `CASES`; return the exit code."""
    names = [word for word in words if word != "--json"] or CASES
    if unknown := [name for name in names if name not in (*CASES, *ON_REQUEST)]:
        sys.exit(f"benchmark {unknown[0]!r} is unknown: expected one of {', '.join((*CASES, *ON_REQUEST))}")
    modules = {name: f"benchmarks.{name}" for name in names}
    data = Path(os.environ.get("SLACKWATER_DATA", "../shared/data"))
    return report(modules, data, as_json="--json" in words)
