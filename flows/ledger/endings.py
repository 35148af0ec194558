"""How a job stands at its end: finished, missed, or not known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from flows.ledger.jobs import Report, StoredJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A job after its deadline; ``share`` is the share of the work that was done, None where that is not known.

    ``measured``: somebody reported it; else it follows from what was decided, as if all of it had been there.
    """

    state: Literal["finished", "missed", "unknown"]
    share: float | None
    measured: bool

    def words(self) -> str:
        """The ending in a few words.

        >>> Ending(state="missed", share=0.06, measured=True).words()
        'missed: 6 % done at its deadline'
        """
        if self.state == "finished":
            return "finished" if self.measured else "finished by its decisions; nobody reported it"
        if self.state == "missed":
            told = "" if self.measured else " by its decisions; nobody reported it"
            return f"missed: {100 * (self.share or 0.0):.0f} % done at its deadline{told}"
        return "ended; nobody reported whether it finished"


def ending_of(job: StoredJob, decisions: Sequence[Mapping[str, Any]], reports: Sequence[Report]) -> Ending:
    """Return how a job ended whose deadline has passed; ``decisions`` by slot, ``reports`` those that count.

    A report up to a slot after the deadline counts. Without a report of progress the newest decision says how much was done when
    its slot began; it is missed if that slot could not have finished it.
    """
    told = [one for one in reports if one.reported_at <= job.deadline + job.step]
    if any(one.finished for one in told):
        return Ending(state="finished", share=1.0, measured=True)
    amount = job.request.workload.amount
    said = [one for one in told if one.progress is not None]
    if said and said[-1].reported_at >= job.deadline - 4 * job.step:
        share = (said[-1].progress or 0.0) / amount
        return Ending(state="finished" if share >= 1.0 - 1e-9 else "missed", share=share, measured=True)
    if not decisions:
        return Ending(state="missed", share=0.0, measured=False)
    last = decisions[-1]
    done = last.get("progress_share")
    if done is None:
        return Ending(state="unknown", share=None, measured=False)
    finish = pd.Timestamp(last["expected_finish"]) if last.get("expected_finish") else None
    if finish is not None and finish <= job.deadline:
        return Ending(state="finished", share=1.0, measured=False)
    return Ending(state="missed", share=float(done), measured=False)
