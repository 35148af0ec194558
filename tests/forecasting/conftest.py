"""One BLAS thread: the Kalman filter's matrices are 2 x 2, where a second thread only spins (ten times slower fits)."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
