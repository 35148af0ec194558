"""Call commands in this process, as the command line would."""

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from typing import NamedTuple

from cyclopts.argument import _collection as arguments

from slackwater.flows.cli import PROGRAM
from slackwater.flows.show.terminal import Style, lines_of

# The help of a command reads the sources of its options' classes; they do not change while the tests run.
arguments.extract_docstring_help = cache(arguments.extract_docstring_help)


class Called(NamedTuple):
    """Exit code and what was printed to standard output and error."""

    code: int
    out: str
    err: str

    @property
    def value(self):
        """Return the JSON object of a command that succeeded."""
        assert self.code == 0, self.err
        return json.loads(self.out)

    @property
    def said(self):
        """Return the printed text on a single line, without its wrapping."""
        return " ".join(self.out.split())


def call(*words):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = PROGRAM.run([str(word) for word in words])
    return Called(code, out.getvalue(), err.getvalue())


def printed(blocks, width=None):
    """Return the printed text of some blocks."""
    return "\n".join(lines_of(blocks, Style(width=width)))


def options_of(*words):
    """Return the options of a command, as its help lists them."""
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", call(*words, "--help").out)) - {"--help"}


#: Job file of 16 instance-hours due in twelve, in ``where``: a line with a market or with patterns.
SMALL_JOB = """name = "one"
{where}
deadline_in = "12h"
n_min = 1
n_max = 4
on_demand_usd = 0.9
[workload]
amount = 16
unit = "instance_hours"
[throughput]
form = "linear"
[checkpoint]
resumable = true
overhead_minutes = 0
"""
