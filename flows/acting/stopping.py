"""Stop signals of a command that loops: the first ends it in order, the second at once."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType

#: Signals that request a stop.
STOPPING = (signal.SIGINT, signal.SIGTERM)
#: Printed if a signal arrives within a look.
ENDING = b"  finishing the present look; a second signal ends it at once ...\n"


class StopSignals:
    """Context in which the first SIGINT or SIGTERM only ends the present `wait` and sets ``exit_code``.

    A second signal ends the process at once. ``exit_code`` is None without a signal, else 130 or 143 as
    shells state it.
    """

    def __init__(self) -> None:
        self.exit_code: int | None = None
        self._waits = False

    def __enter__(self) -> StopSignals:
        self._read, self._write = os.pipe()
        self._before = {number: signal.signal(number, self._stop) for number in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        self.exit_code = 128 + number
        os.write(self._write, b".")  # wakes a wait that has begun, and one that is about to
        for every in STOPPING:
            signal.signal(every, signal.SIG_DFL)
        if not self._waits:
            with suppress(OSError):  # a closed standard error
                os.write(2, ENDING)

    def wait(self, seconds: float) -> bool:
        """Wait until a signal or until ``seconds`` have passed; return whether a signal has arrived."""
        self._waits = True
        select.select([self._read], [], [], max(0.0, seconds))
        self._waits = False
        return self.exit_code is not None
