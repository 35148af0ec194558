"""Run the benchmarks and print one JSON object: ``python -m benchmarks [NAME ...]`` (`make bench` runs all).

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
from pathlib import Path

CASES = ("solver", "replay", "cant_be_late", "ingest", "forecasting", "turn")
NEEDS_DATA = {"forecasting"}


def main(names: list[str]) -> None:
    data = Path(os.environ.get("SLACKWATER_DATA", "../shared/data"))
    results: dict[str, object] = {"python": platform.python_version(), "cores": os.cpu_count()}
    for name in names or CASES:
        if name not in CASES:
            sys.exit(f"benchmark {name!r} is unknown: expected one of {', '.join(CASES)}")
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"{name} ...", file=sys.stderr)
        if name not in NEEDS_DATA:
            results[name] = module.run()
        elif data.is_dir():
            results[name] = module.run(data)
        else:
            results[name] = {"left_out": f"{data} is absent; set SLACKWATER_DATA"}
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
