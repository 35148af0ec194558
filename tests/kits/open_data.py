"""The folder of the open data, which the repository does not contain: ``SLACKWATER_DATA``, by default beside the clone."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("SLACKWATER_DATA", ROOT.parent / "shared" / "data"))
