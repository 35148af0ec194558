"""Other processes that use a warehouse, for the tests of its lock and its snapshots."""

import os
import subprocess
import sys
import textwrap
from contextlib import contextmanager


def run_python(code, *arguments, **variables):
    """Start Python on ``code``; it may be talked with through its standard streams."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
    )


HOLD = """
    import sys
    from warehouse.store.connection import open_store
    with open_store(sys.argv[1]) as store:
        for statement in sys.argv[2:]:
            store.execute(statement)
        print("open", flush=True)
        sys.stdin.readline()
"""


@contextmanager
def writer(path, *statements, **variables):
    """Another process that has the warehouse open for writing, after it ran some statements; killed at the end."""
    process = run_python(HOLD, path, *statements, **variables)
    try:
        assert process.stdout.readline() == "open\n", process.stderr.read()
        yield process
    finally:
        process.kill()
        process.wait()


def let_go(process):
    """Let a `writer` close the warehouse."""
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.wait() == 0
