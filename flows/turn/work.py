"""What a turn is about: the markets it follows and the jobs on them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from flows.jobs.practice import example_requests, open_examples, practice_jobs
from flows.ledger.records import StoredJob, save_jobs, stored_jobs, stored_rounds
from flows.turn.context import Turn
from flows.turn.markets import Followed, choose_markets, find_market, step_of, turn_history
from optimization.job.request import JobRequest
from optimization.policies.contract import Policy
from optimization.policies.pool import DEFAULT_POOL, load_pool
from warehouse.errors import MarketError

#: Example jobs opened on a warehouse without jobs.
OPEN_EXAMPLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a turn is about: the markets it follows, and the jobs on each that run or have ended unscored.

    ``left_out`` says in words which jobs and markets could not be read at this time, and why; they stop nothing else.
    """

    markets: tuple[Followed, ...]
    running: tuple[tuple[StoredJob, Followed], ...]
    ended: tuple[tuple[StoredJob, Followed], ...]
    left_out: tuple[str, ...] = ()

    def jobs_on(self, followed: Followed) -> list[StoredJob]:
        """The jobs of one market."""
        return [job for job, market in (*self.running, *self.ended) if market == followed]


def work_stage(turn: Turn, requests: Sequence[JobRequest], *, scored: Collection[str] | None = None) -> Work:
    """Add the requests of this turn, give a warehouse without jobs examples and practice jobs, and sort the jobs.

    The jobs' markets come first, then the most informative others, `max_markets` in all. ``scored`` names the jobs that are scored
    or will have been by then (None: those that are).
    """
    step, settings = step_of(turn.settings), turn.settings
    save_jobs(turn.store, requests, origin="user", at=turn.at, step=step)
    known = stored_jobs(turn.store)
    left_out: list[str] = []
    chosen = [
        one for one in choose_markets(turn, most=settings.max_markets) if _readable(turn, one[0], left_out)
    ]
    if not any(job.origin == "practice" for job in known):
        _add_practice(turn, chosen, step)
        known = stored_jobs(turn.store)
    open_jobs = (job for job in _visible(turn, known) if job.origin != "practice")
    if not any(job.deadline > turn.at for job in open_jobs):
        capacities = [(followed, capacity) for followed, capacity, _ in chosen]
        examples = open_examples(example_requests(), capacities, most=OPEN_EXAMPLES)
        save_jobs(turn.store, examples, origin="example", at=turn.at, step=step)
        known = stored_jobs(turn.store)
    scored = scored_jobs(turn) if scored is None else scored
    return _sorted_jobs(turn, known, [followed for followed, _, _ in chosen], left_out, scored)


def scored_jobs(turn: Turn) -> set[str]:
    """The jobs that have a round of the turn's pool."""
    return set(stored_rounds(turn.store, pool_names(turn)).jobs)


def _visible(turn: Turn, jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """The jobs that were there at the turn's time; of a turn at each market's own end all of them."""
    return [job for job in jobs if turn.own_end or job.created_at <= turn.at]


def panel_mates(turn: Turn, asked: Iterable[Followed]) -> list[Followed]:
    """The other markets that a turn would follow of the sources of those asked for: what forecasters learn from beside them."""
    wanted = list(asked)
    sources = {followed.source for followed in wanted}
    chosen = [followed for followed, _, _ in choose_markets(turn, most=turn.settings.max_markets)]
    return [one for one in chosen if one.source in sources and one not in wanted and _readable(turn, one, [])]


def _readable(turn: Turn, followed: Followed, left_out: list[str]) -> bool:
    """Whether a market has a history at its time; if not, why goes into ``left_out``."""
    try:
        turn_history(turn, followed, start=followed.at)
    except MarketError as error:
        left_out.append(f"market {followed.key} is left out: {error}")
        return False
    return True


def _add_practice(
    turn: Turn, chosen: Sequence[tuple[Followed, int, pd.Timestamp]], step: pd.Timedelta
) -> None:
    jobs = practice_jobs(example_requests(), chosen, settings=turn.settings)
    save_jobs(turn.store, jobs, origin="practice", at=turn.at, step=step)


def _sorted_jobs(
    turn: Turn,
    jobs: Sequence[StoredJob],
    chosen: Sequence[Followed],
    left_out: list[str],
    scored: Collection[str],
) -> Work:
    """Which stored jobs run at their market's time and which ended by it without having been scored."""
    running: list[tuple[StoredJob, Followed]] = []
    ended: list[tuple[StoredJob, Followed]] = []
    listed = turn.listed()
    for job in _visible(turn, jobs):
        if job.request.name in scored and job.deadline <= turn.at:
            continue  # nothing is left to be done for it, and in a year there are thousands
        text = f"{job.request.market}@{job.request.source}" if job.request.source else str(job.request.market)
        try:
            followed = find_market(
                turn.store, text, at=turn.at, settings=turn.settings, own_end=turn.own_end, listed=listed
            )
        except MarketError as error:
            left_out.append(f"job {job.request.name} is left out: {error}")
            continue
        if followed not in chosen and not _readable(turn, followed, left_out):
            continue
        if job.deadline <= followed.at:
            ended.append((job, followed))
        elif job.start <= followed.at:
            running.append((job, followed))
    ended.sort(key=lambda item: (item[0].deadline, item[0].request.name))
    of_jobs = [followed for _, followed in (*running, *ended)]
    markets = list(dict.fromkeys([*of_jobs, *chosen]))
    most = max(turn.settings.max_markets, len(set(of_jobs)))
    return Work(
        markets=tuple(markets[:most]), running=tuple(running), ended=tuple(ended), left_out=tuple(left_out)
    )


def pool_of(turn: Turn) -> list[Policy[Any]]:
    """The policy pool of the settings."""
    return load_pool(turn.settings.pool or DEFAULT_POOL)


def pool_names(turn: Turn) -> list[str]:
    """Names of the pool's policies, in its order."""
    return [policy.name for policy in pool_of(turn)]


def require_markets(work: Work) -> None:
    """Raise `MarketError` if a turn has no market to follow."""
    if not work.markets:
        raise MarketError(
            "no market has enough history at this time",
            expected="at least one market with a day of counts on the slot grid",
            remedy="`slackwater markets` shows what is there; choose another --at",
        )
