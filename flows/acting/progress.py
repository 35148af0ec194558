"""Progress of a trainer from its folder: its checkpoints, and the file of `slackwater.flows.acting.trainer`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from slackwater.flows.acting.trainer import PROGRESS_FILE
from slackwater.warehouse.amounts import as_number
from slackwater.warehouse.errors import InputError

#: Folders of checkpoints, as Hugging Face's Trainer names them.
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
#: File in a checkpoint with the state of the trainer.
STATE_FILE = "trainer_state.json"
#: Largest number of steps that counts as one.
MOST_STEPS = 10**12
_AS_WRITTEN = "step, max_steps, at and started_at, as the callback writes them"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerProgress:
    """Progress of a trainer: steps done, steps saved by the newest checkpoint, and all steps of the training.

    ``saved_at`` is the time of that checkpoint (the start, if there is none), ``at`` the time of
    ``step``. ``started_at`` is when the present process began and ``first_step_at`` when its first
    step was done, ``checkpoint_minutes`` the longest time of work between two checkpoints of this
    process; None where no callback writes them.
    """

    step: int
    at: datetime
    saved_step: int
    saved_at: datetime
    max_steps: int
    started_at: datetime | None = None
    first_step_at: datetime | None = None
    checkpoint_minutes: float | None = None
    ended: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether all steps are done and saved, or the trainer has ended with all steps done."""
        return max(self.saved_step, self.step if self.ended else 0) >= self.max_steps

    @property
    def saved_share(self) -> float:
        """Share of the training that a loss would leave."""
        return min(1.0, self.saved_step / self.max_steps)

    @property
    def reported_at(self) -> datetime:
        """Time for which the saved share holds: the checkpoint, or the later start of the process that resumed from it."""
        return self.saved_at if self.started_at is None else max(self.saved_at, self.started_at)

    @property
    def restart_minutes(self) -> float | None:
        """Minutes from the start of the process to its first step."""
        if self.started_at is None or self.first_step_at is None:
            return None
        return (self.first_step_at - self.started_at).total_seconds() / 60.0

    def loss_words(self, now: datetime) -> str:
        """Return the work that a loss of the instances now would cost, as text."""
        minutes = max(0.0, (now - self.reported_at).total_seconds() / 60.0)
        steps = max(0, self.step - self.saved_step)
        steps_text = f"{steps:,} steps, " if self.started_at is not None else ""
        return f"a loss now would cost {steps_text}{minutes:.0f} min of work"


def read_progress(folder: Path) -> TrainerProgress | None:
    """Return the progress of the trainer in a folder; None before its first checkpoint or step.

    Raises `InputError` if a file cannot be read as the state of a trainer.
    """
    live = _read_object(folder / PROGRESS_FILE)
    saved = _newest_checkpoint(folder)
    if live is None and saved is None:
        return None
    try:
        step = _steps(live["step"]) if live is not None else saved[0] if saved else 0
        at = _time(live["at"]) if live is not None else saved[1] if saved else None
        most = _steps((live or {}).get("max_steps") or (saved[2] if saved else 0))
        started = None if live is None else _time(live["started_at"])
        first = None if live is None or live.get("first_step_at") is None else _time(live["first_step_at"])
        between = None if live is None else live.get("checkpoint_seconds")
        minutes = None if between is None else _seconds(between) / 60.0
    except KeyError as error:
        raise InputError(f"{folder / PROGRESS_FILE} without {error}", expected=_AS_WRITTEN) from error
    except ValueError as error:
        raise InputError(f"{folder / PROGRESS_FILE}: {error}", expected=_AS_WRITTEN) from error
    if at is None or most <= 0:
        return None
    return TrainerProgress(
        step=max(step, saved[0] if saved else 0),
        at=at,
        saved_step=saved[0] if saved else 0,
        saved_at=saved[1] if saved else (started or at),
        max_steps=most,
        started_at=started,
        first_step_at=first,
        checkpoint_minutes=minutes,
        ended=bool((live or {}).get("ended")),
    )


def _newest_checkpoint(folder: Path) -> tuple[int, datetime, int] | None:
    """Return step, time and all steps of the newest checkpoint whose state is complete."""
    places = [folder, *folder.glob("checkpoint-*")]
    named = {place: int(match[1]) if (match := _CHECKPOINT.fullmatch(place.name)) else -1 for place in places}
    for place in sorted(places, key=lambda name: -named[name]):
        state = _read_object(place / STATE_FILE)
        if state is None or state.get("global_step") is None:
            continue
        try:
            step, most = _steps(state["global_step"]), _steps(state.get("max_steps") or 0)
            return step, datetime.fromtimestamp((place / STATE_FILE).stat().st_mtime, UTC), most
        except (OSError, ValueError) as error:  # a checkpoint may be deleted at any time
            raise InputError(
                f"{place / STATE_FILE}: {error}", expected="global_step and max_steps"
            ) from error
    return None


def _read_object(file: Path) -> dict[str, Any] | None:
    """Return a JSON object; None if there is no file, or if it is still being written."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _steps(value: Any) -> int:
    """Return a number of steps; raises `ValueError` for any other value."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_STEPS:
        raise ValueError(f"{str(value)[:40]!r} is not a number of steps")
    return value


def _seconds(value: Any) -> float:
    """Return finite seconds, at least 0; raises `ValueError` for any other value."""
    seconds = as_number(value)
    if seconds is None or seconds < 0:
        raise ValueError(f"{str(value)[:40]!r} is not a number of seconds")
    return seconds


def _time(value: Any) -> datetime:
    try:
        return datetime.fromtimestamp(_seconds(value), UTC)
    except OverflowError as error:
        raise ValueError(f"{str(value)[:40]!r} is not a time in seconds since 1970") from error
