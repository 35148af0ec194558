"""A user's command as a child process: no shell, bounded in time and output, killed with all it started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from warehouse.errors import FetchError
from warehouse.waiting import steady_seconds

#: A count and what goes with it need no more.
LARGEST_OUTPUT = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command left: exit code (negative: killed by that signal), and its two streams."""

    code: int
    out: str
    err: str


def run_command(command: Sequence[str], *, given: str, seconds: float) -> Output:
    """Run a command with ``given`` on its standard input.

    Raises `FetchError` if it cannot be started, takes longer than ``seconds`` or writes more than `LARGEST_OUTPUT` bytes.
    """
    try:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise FetchError(
            f"probe {command[0]!r} cannot be started: {error.strerror if isinstance(error, OSError) else error}",
            remedy="name a program that can be run",
        ) from error
    with child:
        try:
            streams = _talk(child, given.encode(), seconds)
            code = child.wait(timeout=max(0.1, seconds))
        except subprocess.TimeoutExpired as error:
            raise FetchError(f"probe {command[0]!r} did not end in {seconds:g} s") from error
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
    out, err = (stream.decode("utf-8", "replace") for stream in streams)
    return Output(code=code, out=out, err=err)


def _talk(child: subprocess.Popen[bytes], given: bytes, seconds: float) -> tuple[bytes, bytes]:
    """Write the question and read both streams to their ends."""
    if child.stdin is None or child.stdout is None or child.stderr is None:
        raise FetchError("probe without streams")
    with suppress(BrokenPipeError):  # a command that asks nothing may be gone already
        child.stdin.write(given)
        child.stdin.close()
    read = {child.stdout: bytearray(), child.stderr: bytearray()}
    end = steady_seconds() + seconds
    with selectors.DefaultSelector() as waiting:
        for stream in read:
            waiting.register(stream, selectors.EVENT_READ)
        while waiting.get_map():
            left = end - steady_seconds()
            ready = waiting.select(left) if left > 0 else []
            if not ready:
                raise subprocess.TimeoutExpired(child.args, seconds)
            for key, _ in ready:
                stream = child.stdout if key.fileobj is child.stdout else child.stderr
                part = os.read(key.fd, 65_536)
                if not part:
                    waiting.unregister(stream)
                read[stream] += part
            if sum(map(len, read.values())) > LARGEST_OUTPUT:
                raise FetchError(f"probe wrote more than {LARGEST_OUTPUT:,} bytes", expected="a count")
    return bytes(read[child.stdout]), bytes(read[child.stderr])
