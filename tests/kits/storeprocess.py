"""Other processes that use a warehouse, for tests of its lock, its snapshots and its state after a kill.

Each has a separate process id and separate locks, and can be killed. It is forked from a process that has
imported the warehouse and opened none: a new import takes a quarter of a second, and the tests start dozens.
"""

import multiprocessing
import os
import sys
import textwrap
import threading
from contextlib import contextmanager, suppress

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["slackwater.warehouse.store.connection", "slackwater.warehouse.observations"])


def _run(code, arguments, variables, *streams):
    """Run ``code`` in the new process as ``python -c`` does."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in enumerate("rww"))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


class OtherProcess:
    """A process that runs ``code``, with the part of the interface of `subprocess.Popen` that the tests use."""

    def __init__(self, code, arguments, variables):
        ours, theirs = [], []
        for number, mode in enumerate("wrr"):
            reading, writing = FORKS.Pipe(duplex=False)
            own, other = (writing, reading) if number == 0 else (reading, writing)
            theirs.append(other)
            ours.append(open(os.dup(own.fileno()), mode))  # noqa: SIM115
            own.close()
        self.stdin, self.stdout, self.stderr = ours
        self._process = FORKS.Process(target=_run, args=(code, arguments, variables, *theirs), daemon=True)
        self._process.start()
        for stream in theirs:
            stream.close()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def kill(self):
        self._process.kill()

    def wait(self):
        self._process.join()
        return self.returncode

    def communicate(self, text="", timeout=120):
        """Return its output on both streams until it ends; it is killed after ``timeout`` seconds."""
        late = threading.Timer(timeout, self.kill)
        late.start()
        with suppress(BrokenPipeError):
            self.stdin.write(text)
            self.stdin.close()
        said = self.stdout.read(), self.stderr.read()
        self.wait()
        late.cancel()
        return said


def run_python(code, *arguments, **variables):
    """Start Python on ``code``, with pipes as standard streams."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    return OtherProcess(textwrap.dedent(code), [*map(str, arguments)], environment)


HOLD = """
    import sys
    from slackwater.warehouse.store.connection import open_store
    with open_store(sys.argv[1]) as store:
        for statement in sys.argv[2:]:
            store.execute(statement)
        print("open", flush=True)
        sys.stdin.readline()
"""


@contextmanager
def writer(path, *statements, **variables):
    """Return another process that has the warehouse open for writing, after some statements; killed at the end."""
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
