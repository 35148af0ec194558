"""Callback for the Trainer of Hugging Face: writes the progress of a training for `slackwater progress`.

It runs beside the training and imports the standard library only::

    from slackwater.flows.acting.trainer import ProgressCallback

    trainer = Trainer(..., callbacks=[ProgressCallback("output")])
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: File that the callback writes in the folder of the training.
PROGRESS_FILE = "slackwater_progress.json"


class ProgressCallback:
    """Writes step, time and restart of a training into a folder, at most every ``every`` seconds.

    Times are of ``clock`` in seconds since the epoch. Only the main process writes. Events that it
    does not use do nothing.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, every: float = 15.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._file = Path(folder) / PROGRESS_FILE
        self._every = every
        self._clock = clock
        self._started_at = clock()
        self._first_step_at: float | None = None
        self._written = -float("inf")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Note the first step of this process, and write the progress if the last time is long ago."""
        now = self._clock()
        first = self._first_step_at is None
        if first:
            self._first_step_at = now
        if first or now - self._written >= self._every:
            self._write(state, ended=False)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the progress with each checkpoint."""
        self._write(state, ended=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the end of the training."""
        self._write(state, ended=True)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function that does nothing, for the other events of the trainer."""
        if name.startswith("on_"):
            return lambda *args, **more: None
        raise AttributeError(name)

    def _write(self, state: Any, *, ended: bool) -> None:
        if not getattr(state, "is_world_process_zero", True):
            return
        self._written = self._clock()
        found = {
            "step": state.global_step,
            "max_steps": state.max_steps,
            "at": self._written,
            "started_at": self._started_at,
            "first_step_at": self._first_step_at,
            "ended": ended,
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(found), encoding="utf-8")
        os.replace(part, self._file)
