"""The process of the Prefect server ends with its parent, however that ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

CHILD = """
import os, time
from slackwater.flows.engine.server import end_with
end_with(os.getppid())
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_when_its_parent_is_ended_by_a_signal(number):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.send_signal(number)
    parent.wait()
    deadline = time.monotonic() + 60
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(child, 0)
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        pytest.fail("the server outlived its parent")
