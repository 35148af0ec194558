"""Run the command line of this checkout, and return its output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[3]
#: One thread everywhere, so that sums are computed in the same order on every machine.
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


@dataclass(frozen=True)
class Ran:
    """Result of a command: exit code, output, and CPU time."""

    code: int
    out: str
    err: str

    def answer(self) -> Any:
        """Return the printed JSON; without JSON, the last line of output."""
        try:
            told = json.loads(self.out)
        except ValueError:
            lines = [line for line in self.err.splitlines() if not line.startswith("  ")]
            told = {"stdout": self.out.splitlines()[:20], "stderr": lines[-5:]}
        return {"exit": self.code, "answer": told}


def entry_point() -> list[str]:
    """Return the words that start the command line, as in `[project.scripts]` of this checkout."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    module, name = project["project"]["scripts"]["slackwater"].split(":")
    return [sys.executable, "-c", f"from {module} import {name}; {name}()"]


def slackwater(words: list[str], folder: Path) -> Ran:
    """Run a command in `folder`, with the code of this checkout whatever is installed."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "SLACKWATER_"))
    }
    environment = (
        kept | ONE_THREAD | {"PYTHONPATH": str(CHECKOUT), "TZ": "UTC", "NO_COLOR": "1", "COLUMNS": "80"}
    )
    done = subprocess.run(
        [*entry_point(), *words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)
