"""Running the command line of this checkout, and what it wrote."""

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
#: One thread everywhere, so that sums are taken in one order on every machine.
ONE_THREAD = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)


@dataclass(frozen=True)
class Ran:
    """How a command ended, what it printed, and the CPU it took."""

    code: int
    out: str
    err: str

    def answer(self) -> Any:
        """The JSON it printed; where it printed none, its last words."""
        try:
            told = json.loads(self.out)
        except ValueError:
            lines = [line for line in self.err.splitlines() if not line.startswith("  ")]
            told = {"stdout": self.out.splitlines()[:20], "stderr": lines[-5:]}
        return {"exit": self.code, "answer": told}


def entry_point() -> list[str]:
    """Words that start the command line as `[project.scripts]` of this checkout says."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    module, name = project["project"]["scripts"]["slackwater"].split(":")
    return [sys.executable, "-c", f"from {module} import {name}; {name}()"]


def slackwater(words: list[str], folder: Path) -> Ran:
    """One command in `folder`, with the code of this checkout whatever is installed."""
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
