"""Calls a user's probe function in a process of its own: ``python -P run_probe.py MODULE:FUNCTION``.

The question comes as one JSON object on standard input and is handed over as keyword arguments; what the function returns goes
to standard output as JSON, what it prints goes to standard error. So it can be stopped, and cannot harm its caller.

It is run as a file with the working folder first on the module path, so that a user's ``probe.py`` is not mistaken for ours.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from contextlib import redirect_stdout


def main(arguments: list[str]) -> int:
    """Exit code 0 with the answer on standard output, else 2 and the reason on standard error."""
    sys.path.insert(0, os.getcwd())
    module, _, function = arguments[0].partition(":")
    asked = json.load(sys.stdin)
    with redirect_stdout(sys.stderr):
        try:
            probe = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            print(f"no probe {arguments[0]}: {error}", file=sys.stderr)
            return 2
        answer = json.dumps(probe(**asked))
    print(answer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
