"""Run a user's probe function in a separate process: ``python -P run_probe.py MODULE:FUNCTION``.

The request is a JSON object on standard input, passed to the function as keyword arguments. The
return value is written to standard output as JSON; printed text goes to standard error. The process
can be stopped and cannot harm its caller.

The script puts the working folder first on the module path, and is run as a file, so that a user's
``probe.py`` is not confused with our module.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import redirect_stdout


def main(arguments: list[str]) -> int:
    """Return exit code 0 with the answer on standard output, or 2 with the reason on standard error."""
    sys.path.insert(0, os.getcwd())
    module, _, function = arguments[0].partition(":")
    parameters = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        try:
            probe = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            print(f"no probe {arguments[0]}: {error}", file=sys.stderr)
            return 2
        answer = json.dumps(probe(**parameters))
    print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
