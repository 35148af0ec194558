"""The picture of README: the overview of the web UI after the first turn on the simulated market.

`python tests/kits/overview_picture.py` renews ``docs/overview.png``; needs a Chromium.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from chromium import chromium_page

PICTURE = Path(__file__).resolve().parents[2] / "docs" / "overview.png"
AT = "2026-11-25T12:00:00Z"
SLACKWATER = Path(sys.executable).with_name("slackwater")


@contextmanager
def served(folder: Path):
    """Serve the warehouse of ``folder`` at a free port; yields the address."""
    words = [SLACKWATER, "ui", "--port", "0", "--at", AT]
    with subprocess.Popen(
        words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            for line in process.stdout:
                if "http://" in line:
                    yield next(word for word in line.split() if word.startswith("http://")).rstrip(".,")
                    return
        finally:
            process.terminate()
    raise RuntimeError("the UI printed no address")


def main() -> None:
    """Run one turn in an empty folder, and take the picture of the overview page."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([SLACKWATER, "run", "--at", AT], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        with served(folder) as address, chromium_page() as page:
            page.look(width=1280)
            page.open(address)
            page.settle(1.0)
            page.screenshot(PICTURE)
            assert not page.problems, page.problems


if __name__ == "__main__":
    os.environ.setdefault("COLUMNS", "100")
    main()
