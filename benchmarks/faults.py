"""The fault harness as a benchmark: number of injected faults, and check that no data were lost (docs/faults.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HARNESS = Path(__file__).resolve().parents[1] / "tests" / "faults" / "faults.py"


def run() -> dict[str, Any]:
    """Return the counts of a full run of about ten minutes, in a separate process since the harness forks."""
    process = subprocess.run([sys.executable, str(HARNESS)], stdout=subprocess.PIPE, text=True, check=False)
    answer: dict[str, Any] = json.loads(process.stdout)
    return answer
