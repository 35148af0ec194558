"""Calls of programs by drivers."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from slackwater.flows.acting.contract import DriverError

#: Most characters of a program's message in an error.
MOST_MESSAGE = 400


def call_program(
    words: Sequence[str],
    *,
    name: str,
    timeout_seconds: float,
    given: str = "",
    expected: str = "a program that can be run",
    remedy: str = "",
) -> str:
    """Run a program with ``given`` on its standard input, and return its standard output.

    ``name`` is the call in errors; ``expected`` and ``remedy`` are for a missing program. Raises
    `DriverError` if it cannot be run, fails, or takes too long. Ctrl-C at the terminal does not reach
    the program, so that it never cuts a launch.
    """
    try:
        done = subprocess.run(
            list(words), input=given, capture_output=True, text=True, timeout=timeout_seconds, check=False,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise DriverError(f"{words[0]}: {error.strerror}", expected=expected, remedy=remedy) from error
    except subprocess.TimeoutExpired as error:
        raise DriverError(f"{name} gave no answer within {timeout_seconds:g} s") from error
    if done.returncode:
        message = " ".join((done.stderr or done.stdout).split())[-MOST_MESSAGE:] or "no message"
        raise DriverError(f"{name} ended with exit code {done.returncode}: {message}")
    return done.stdout
