"""Run the benchmarks: ``python -m benchmarks [NAME ...] [--json]`` (`make bench` runs all).

Each benchmark is a module of this package with a function ``run() -> dict``, run in a separate
process, so that imports, compiled code and memory of a benchmark do not affect another. Its figures
are printed when it ends. The error of a failed benchmark is printed, the others continue, and the
exit code is 1. With ``--json`` figures are printed to standard error, and an object with all figures
to standard output at the end.

Seconds depend on the machine and its load: compare ratios. Benchmarks that need the real histories
read the folder named by ``SLACKWATER_DATA``; without it they are left out, with the reason.
"""

import sys

from benchmarks.runner import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
