"""Settings that must be there before NumPy and Prefect are loaded."""

import os

from flows.engine.run import ENGINE_SETTINGS

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Whichever test loads the engine first: its server may be slow to start beside the tests of other processes.
for name, value in ENGINE_SETTINGS.items():
    os.environ.setdefault(name, value)
