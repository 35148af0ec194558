"""Settings that must be there before NumPy is loaded."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
