"""The fault harness as a benchmark: what it killed, starved and broke, and that nothing was lost (docs/faults.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HARNESS = Path(__file__).resolve().parents[1] / "tests" / "faults" / "faults.py"


def run() -> dict[str, Any]:
    """The counts of a full run, some ten minutes; it is a process of its own, since it forks."""
    process = subprocess.run([sys.executable, str(HARNESS)], stdout=subprocess.PIPE, text=True, check=False)
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer
