"""Commands, turns, acting, reports and web pages; no arithmetic of plans.

`turn` is the loop in its order, `plans` answers for a single job, `acting` launches instances, `ledger` stores results.
"""

import os

# The matrices are small: with a single thread twelve ARIMA fits take a tenth of the time they need with two threads.
# Set before NumPy is loaded; a value set by the user has precedence.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
