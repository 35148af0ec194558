"""A child process ends with its parent, however that ends."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest
from forms_kit import quick_first

CHILD = """
import os, sys, time
from slackwater.optimization.fan import end_with
end_with(os.getppid(), stop_seconds=float(sys.argv[1]))
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {CHILD!r}, *sys.argv[1:]])
"""


@pytest.mark.parametrize(
    ("number", "stop_seconds"), quick_first([(signal.SIGKILL, 20.0), (signal.SIGTERM, 0.0)])
)
def test_a_process_ends_when_its_parent_is_ended_by_a_signal(number, stop_seconds):
    command = [sys.executable, "-c", PARENT, str(stop_seconds)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.send_signal(number)
    parent.wait()
    deadline = time.monotonic() + 60
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(child, 0)
            time.sleep(0.05)
        os.kill(child, signal.SIGKILL)
        pytest.fail("the child outlived its parent")
