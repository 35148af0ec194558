"""Run the benchmarks: ``python -m benchmarks [NAME ...] [--json]`` (`make bench` runs all).

Each benchmark is a module of this package with a function ``run() -> dict``, run in a process of
its own: what one has imported, compiled and kept in memory counts for no other. Its figures are
printed as it ends. One that fails is said with its error, the others go on, and the exit code is 1.
With ``--json`` the figures go to standard error as they come, and one object with all of them is
printed at the end.

Seconds are of this machine and this moment: read the ratios. Benchmarks that need the real
histories take the folder from ``SLACKWATER_DATA`` and are left out, with the reason, when it is
absent.
"""

import sys

from benchmarks.runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
