"""Example jobs: open ones for a warehouse that has none, and practice jobs in the past that the pool can learn from (M5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.turn.markets import Followed, step_of
from optimization.job.request import JobRequest, first_slot, read_request
from warehouse.errors import JobError

#: The job files among the examples: other examples are TOML files too.
EXAMPLES = ("bert-sweep", "llama-8b-lora", "qwen-14b-sft")


def example_requests() -> list[JobRequest]:
    """The job files that come with the project, sorted by name."""
    here = Path(__file__).parents[1]
    folder = here / "examples" if (here / "examples").is_dir() else here.parent / "examples"
    files = [folder / f"{name}.toml" for name in EXAMPLES]
    if not all(file.is_file() for file in files):
        raise JobError(f"no example job in {folder}", remedy="give a job with --job FILE")
    return [read_request(file) for file in files]


def fitting(requests: Sequence[JobRequest], capacity: int) -> list[JobRequest]:
    """The requests whose width suits a market: single-instance ones where the market shows one, wider ones elsewhere."""
    single = [request for request in requests if request.n_max == 1]
    wide = [request for request in requests if request.n_max > 1]
    return (single or wide) if capacity <= 1 else (wide or single)


def open_examples(
    requests: Sequence[JobRequest], markets: Sequence[tuple[Followed, int]], *, most: int
) -> list[JobRequest]:
    """Example jobs that start now, one a market, on markets (with capacity) as different as can be.

    The markets are taken in turn from each (provider, instance type, source) so that few jobs show many kinds.
    """
    groups: dict[tuple[str, str, str], list[tuple[Followed, int]]] = {}
    for followed, capacity in markets:
        kind = (followed.market.provider, followed.market.instance_type, followed.source)
        groups.setdefault(kind, []).append((followed, capacity))
    kinds = sorted(
        groups.values(), key=lambda group: group[0][1] <= 1
    )  # stable: markets of one instance come last
    rounds = max((len(group) for group in kinds), default=0)
    order = [group[i] for i in range(rounds) for group in kinds if i < len(group)]
    jobs = []
    for i, (followed, capacity) in enumerate(order[:most]):
        choice = fitting(requests, capacity)
        request = choice[i % len(choice)]
        name = f"{request.name}-{followed.at:%Y%m%d-%H%M}-{i + 1}"
        jobs.append(
            _named(request, name).placed(at=followed.at, market=followed.market.key, source=followed.source)
        )
    return jobs


def practice_jobs(
    requests: Sequence[JobRequest],
    markets: Sequence[tuple[Followed, int, pd.Timestamp]],
    *,
    settings: Settings,
) -> list[JobRequest]:
    """Jobs that began and ended in each market's past, at seeded random times: real markets, invented work.

    ``markets`` gives the followed market, its capacity and its first observed slot. A job needs a day of history before it, and
    its deadline at or before the market's time; markets too short for that are left out. It begins in the newest `backlog_days`,
    or at the latest start there is if it is longer than those.
    """
    step = step_of(settings)
    rng = np.random.default_rng(settings.seed)
    jobs: list[JobRequest] = []
    for i in range(settings.backlog_jobs if markets else 0):
        followed, capacity, first = markets[i % len(markets)]
        choice = fitting(requests, capacity)
        request = choice[int(rng.integers(len(choice)))].model_copy(update={"start": None})
        now = request.placed(at=followed.at, market=followed.market.key, source=followed.source)
        length = now.ends - first_slot(now, step)
        latest = (followed.at - length).floor(step)
        newest = min(followed.at - pd.Timedelta(days=settings.backlog_days), latest)
        earliest = max(first + pd.Timedelta(days=1), newest).ceil(step)
        slots = int((latest - earliest) / step)
        if slots < 0:
            continue
        start = earliest + int(rng.integers(slots + 1)) * step
        name = f"practice-{i + 1:02d}-{request.name}"
        jobs.append(
            _named(request, name).placed(at=start, market=followed.market.key, source=followed.source)
        )
    return jobs


def _named(request: JobRequest, name: str) -> JobRequest:
    return request.model_copy(update={"name": name})
