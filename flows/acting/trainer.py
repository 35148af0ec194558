"""Callback for the Trainer of Hugging Face: writes the progress of a training, or posts it to `slackwater ui`.

It runs in the training process and imports the standard library only::

    from slackwater.flows.acting.trainer import ProgressCallback

    trainer = Trainer(..., callbacks=[ProgressCallback("output")])

With ``url`` each checkpoint is also posted as a report of the job: the folder need not be shared.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: File that the callback writes in the folder of the training.
PROGRESS_FILE = "slackwater_progress.json"


class ProgressCallback:
    """Writes step, time and restart of a training into a folder, at most every ``every`` seconds.

    Times are of ``clock`` in seconds since the epoch. Only the main process writes. Events that it
    does not use do nothing.

    ``url`` is the address of the job's reports, ``https://HOST/api/jobs/NAME/report``, and ``token_env``
    the environment variable with the token. A report that cannot be delivered is printed and never
    stops the training; the next report includes its content.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        every: float = 15.0,
        url: str | None = None,
        token_env: str = "SLACKWATER_REPORT_TOKEN",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._url, self._token_env = url, token_env
        self._worked_from: float | None = None
        self._checkpoint: float | None = None
        self._file = Path(folder) / PROGRESS_FILE
        self._every = every
        self._clock = clock
        self._started_at = clock()
        self._first_step_at: float | None = None
        self._written = -float("inf")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Record the first step of this process, and write the progress if ``every`` seconds have passed."""
        now = self._clock()
        first = self._first_step_at is None
        if first:
            self._first_step_at = self._worked_from = now
        if first or now - self._written >= self._every:
            self._write(state, ended=False)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the progress with each checkpoint, and the time since the previous checkpoint."""
        now = self._clock()
        if self._worked_from is not None:
            self._checkpoint = max(self._checkpoint or 0.0, now - self._worked_from)
            self._worked_from = now
        self._write(state, ended=False)
        self._post(state, ended=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the end of the training."""
        self._write(state, ended=True)
        if state.global_step >= state.max_steps:
            self._post(state, ended=True)

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function that does nothing, for the other events of the trainer."""
        if name.startswith("on_"):
            return lambda *args, **more: None
        raise AttributeError(name)

    def _post(self, state: Any, *, ended: bool) -> None:
        """Post the saved progress as a report of the job, with the measured times."""
        if self._url is None or not getattr(state, "is_world_process_zero", True) or not state.max_steps:
            return
        minutes = {"checkpoint_minutes": self._checkpoint}
        if self._first_step_at is not None:
            minutes["restart_minutes"] = self._first_step_at - self._started_at
        report: dict[str, Any] = {
            key: round(seconds / 60.0, 3) for key, seconds in minutes.items() if seconds is not None
        }
        at = datetime.fromtimestamp(self._clock(), UTC).isoformat()
        report |= {"at": at, "note": "from the trainer's checkpoints"}
        report |= (
            {"finished": True} if ended else {"progress_share": min(1.0, state.global_step / state.max_steps)}
        )
        request = urllib.request.Request(
            self._url,
            data=json.dumps(report).encode(),
            headers={
                "Authorization": f"Bearer {os.environ.get(self._token_env, '')}",
                "Content-Type": "application/json",
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=10.0):
                pass
        except (OSError, ValueError, http.client.HTTPException) as error:
            print(f"slackwater: the report was not delivered: {error}", file=sys.stderr)

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
            "checkpoint_seconds": self._checkpoint,
            "ended": ended,
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(found), encoding="utf-8")
        os.replace(part, self._file)
