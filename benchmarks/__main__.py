"""Run the benchmarks and print their figures: ``python -m benchmarks [NAME ...] [--json]`` (`make bench` runs all).

Each benchmark is a module of this package with a function ``run() -> dict``. Seconds are of this machine and this
moment: read the ratios. Those that need the real histories take the folder from ``SLACKWATER_DATA`` and are left out, with
the reason, when it is absent.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

CASES = (
    "solver", "replay", "cant_be_late", "ingest", "forecasting", "turn", "forecast_turn", "backtest_speed", "workers",
    "backfill", "joint",
)  # fmt: skip
#: Run when they are named only: they take long.
ON_REQUEST = ("faults",)
NEEDS_DATA = {"forecasting", "backtest_speed"}


def figures(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every figure of nested results with the way to it, dots between: a table's rows."""
    pairs: list[tuple[object, object]] = []
    if isinstance(value, dict):
        pairs = list(value.items())
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        pairs = [(i, item) for i, item in enumerate(value)]
    if not pairs:
        yield path, value
    for key, item in pairs:
        yield from figures(item, f"{path}.{key}" if path else str(key))


def main(words: list[str]) -> None:
    names = [word for word in words if word != "--json"]
    data = Path(os.environ.get("SLACKWATER_DATA", "../shared/data"))
    results: dict[str, object] = {"python": platform.python_version(), "cores": os.cpu_count()}
    for name in names or CASES:
        if name not in (*CASES, *ON_REQUEST):
            sys.exit(f"benchmark {name!r} is unknown: expected one of {', '.join((*CASES, *ON_REQUEST))}")
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"{name} ...", file=sys.stderr)
        if name not in NEEDS_DATA:
            results[name] = module.run()
        elif data.is_dir():
            results[name] = module.run(data)
        else:
            results[name] = {"left_out": f"{data} is absent; set SLACKWATER_DATA"}
    if "--json" in words:
        print(json.dumps(results, indent=2))
        return
    rows = list(figures(results))
    width = max(len(path) for path, _ in rows)
    for path, figure in rows:
        print(f"{path:<{width}}  {figure}")


if __name__ == "__main__":
    main(sys.argv[1:])
