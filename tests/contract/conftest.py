"""Makers of histories live beside the forecasting tests; the contract suites use the same ones."""

import os
import sys
from pathlib import Path

# The Kalman filter's matrices are 2 x 2: a second BLAS thread only spins, and made fits ten times slower.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).parents[1] / "forecasting"))
