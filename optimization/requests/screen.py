"""Which candidates of a request are worth a plan: what on-demand alone would do, and a rough cost with spot (M9.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from optimization.requests.candidates import Candidate, OnDemand

#: Candidates of one GPU model and one number of GPUs an instance that are planned, so that others are looked at too.
MOST_OF_A_KIND = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """A candidate with what on-demand alone would do at the median and at the low end, and a rough cost with spot.

    ``cost_usd`` is that of the widest width for as long as the median needs, spot as over the last day: for ranking only.
    """

    candidate: Candidate
    alone: OnDemand
    alone_low: OnDemand
    cost_usd: float
    hours: float

    @property
    def in_time(self) -> bool:
        """Whether on-demand alone meets the deadline at the low end of the predicted throughput."""
        return self.alone_low.late_by == 0


def screened_of(candidates: Sequence[Candidate], step: pd.Timedelta) -> list[Screened]:
    """Every candidate screened, in the order given."""
    found = []
    for one in candidates:
        widest = one.widths[-1]
        hours = one.request.workload.amount / widest.tokens_per_second / 3600.0
        found.append(
            Screened(
                candidate=one,
                alone=one.alone(step),
                alone_low=one.alone(step, "low"),
                cost_usd=hours * one.offer.screened_usd(widest.instances),
                hours=hours,
            )
        )
    return found


def finalists_of(screened: Sequence[Screened], *, most: int, objective: str) -> list[Screened]:
    """Of those in time the ``most`` that look best, at most `MOST_OF_A_KIND` of a kind.

    Of one market and one number of GPUs only the best batch and number format comes.
    """
    ranked = sorted((one for one in screened if one.in_time), key=lambda one: _rank(one, objective))
    kinds: dict[tuple[str, int], int] = {}
    seen: set[tuple[str, int]] = set()
    chosen: list[Screened] = []
    for one in ranked:
        terms = one.candidate.terms
        kind = (terms.gpu_model, terms.gpus)
        same = (one.candidate.offer.key, one.candidate.gpus)
        if len(chosen) < most and kinds.get(kind, 0) < MOST_OF_A_KIND and same not in seen:
            kinds[kind] = kinds.get(kind, 0) + 1
            seen.add(same)
            chosen.append(one)
    return chosen


def _rank(one: Screened, objective: str) -> tuple[float, ...]:
    """Best first, what differs by less than about one per cent by the smaller batch; bfloat16 before float16."""
    cost, hours = (round(math.log(max(value, 1e-9)), 2) for value in (one.cost_usd, one.hours))
    first, second = (hours, cost) if objective == "time" else (cost, hours)
    terms = one.candidate.terms
    return first, second, one.candidate.gpus, terms.batch_size, terms.torch_dtype != "bfloat16"
