"""Prefect flows, the command line and the report; no arithmetic."""

import os

# The matrices here are small: with one thread twelve ARIMA fits take a tenth of the time that two threads need. It must
# be set before NumPy is loaded, and a user's own setting stands.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
