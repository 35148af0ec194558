"""What a turn is about: the markets it follows, the jobs on them, and the pool of policies with what was learned of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flows.config import Settings
from flows.ledger.jobs import StoredJob, save_jobs, stored_jobs
from flows.ledger.rounds import stored_rounds
from flows.turn.context import Turn
from flows.turn.markets import Followed, choose_markets, find_market, step_of, try_histories
from optimization.job.request import JobRequest, first_slot, read_request
from optimization.policies.contract import Policy
from optimization.policies.pool import DEFAULT_POOL, load_pool, policy_named
from optimization.selection.contract import Learner, Weights, weigh
from optimization.selection.learned import Rounds, leading
from optimization.selection.learners import learner_named
from warehouse.errors import JobError, MarketError
from warehouse.times import microseconds

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


def find_work(turn: Turn, requests: Sequence[JobRequest], *, scored: Collection[str]) -> Work:
    """Add the requests of this turn, give a warehouse without jobs examples and practice jobs, and sort the jobs.

    The jobs' markets come first, then the most informative others, `max_markets` in all. ``scored`` names the jobs on which nothing
    is left to be learned, or will be by then (`Rounds.settled`).
    """
    step, settings = step_of(turn.settings), turn.settings
    save_jobs(turn.store, requests, origin="user", at=turn.at, step=step)
    known = stored_jobs(turn.store)
    left_out: list[str] = []
    chosen = choose_markets(turn, most=settings.max_markets)
    readable = _readable(turn, [followed for followed, _, _ in chosen], left_out)
    chosen = [one for one in chosen if one[0] in readable]
    if not any(job.origin == "practice" for job in known):
        _add_practice(turn, chosen, step)
        known = stored_jobs(turn.store)
    open_jobs = (job for job in _visible(turn, known) if job.origin != "practice")
    if not any(job.deadline > turn.at for job in open_jobs):
        capacities = [(followed, capacity) for followed, capacity, _ in chosen]
        examples = open_examples(example_requests(), capacities, most=OPEN_EXAMPLES)
        save_jobs(turn.store, examples, origin="example", at=turn.at, step=step)
        known = stored_jobs(turn.store)
    return _sorted_jobs(turn, known, [followed for followed, _, _ in chosen], left_out, scored)


def _visible(turn: Turn, jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """The jobs that were there at the turn's time; of a turn at each market's own end all of them."""
    return [job for job in jobs if turn.own_end or job.created_at <= turn.at]


def panel_mates(turn: Turn, asked: Iterable[Followed]) -> list[Followed]:
    """The other markets that a turn would follow of the sources of those asked for: what forecasters learn from beside them."""
    wanted = list(asked)
    sources = {followed.source for followed in wanted}
    chosen = [followed for followed, _, _ in choose_markets(turn, most=turn.settings.max_markets)]
    mates = [one for one in chosen if one.source in sources and one not in wanted]
    readable = _readable(turn, mates, [])
    return [one for one in mates if one in readable]


def _readable(turn: Turn, asked: Sequence[Followed], left_out: list[str]) -> set[Followed]:
    """The markets that have a history at their time; why others have none goes into ``left_out``."""
    found: set[Followed] = set()
    for followed, history in zip(asked, try_histories(turn, [(one, one.at) for one in asked]), strict=True):
        if isinstance(history, MarketError):
            left_out.append(f"market {followed.key} is left out: {history}")
        else:
            found.add(followed)
    return found


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
        try:
            followed = find_market(
                turn.store,
                job.request.place,
                at=turn.at,
                settings=turn.settings,
                own_end=turn.own_end,
                listed=listed,
            )
        except MarketError as error:
            left_out.append(f"job {job.request.name} is left out: {error}")
            continue
        if followed not in chosen and not _readable(turn, [followed], left_out):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The policies of the settings in their order, what was learned of each by now, and who learns from it."""

    policies: tuple[Policy[Any], ...]
    rounds: Rounds
    learner: Learner[Any]
    practice: Policy[Any]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the policies."""
        return self.rounds.names

    def learned(self, rounds: Rounds) -> Pool:
        """The pool with other rounds."""
        return replace(self, rounds=rounds)

    def has_learned(self, at: pd.Timestamp) -> bool:
        """Whether anything was learned by a time."""
        return bool(self.rounds.before(microseconds(at, "at")).jobs)

    def deciding(self, times: Sequence[pd.Timestamp]) -> list[tuple[Policy[Any], str]]:
        """Who decides at each of some times, and why: the leader of the rounds learned before (decision 3)."""
        known = [self.rounds.before(microseconds(at, "at")) for at in times]
        # Turns that have learned from the first rounds share one pass over them.
        prefixes = [len(own.jobs) for own in known if own.jobs and own.begins(self.rounds)]
        first = min(prefixes, default=0)
        table = self.rounds.full(self.learner) if prefixes else self.rounds.utilities
        shared = weigh(self.learner, self.names, table, after=first) if prefixes else []
        found: list[tuple[Policy[Any], str]] = []
        for own in known:
            seen = len(own.jobs)
            if not seen:
                found.append((self.practice, "no job has ended yet"))
            elif own.begins(self.rounds):
                found.append(self._leading(shared[seen - first], seen))
            else:
                found.append(self._leading(own.newest(self.learner), seen))
        return found

    def _leading(self, weights: Weights, jobs: int) -> tuple[Policy[Any], str]:
        name, why = leading(weights, jobs)
        return self.policies[self.names.index(name)], why


def read_pool(turn: Turn) -> Pool:
    """The policy pool of the settings with what the warehouse has learned of it."""
    policies = load_pool(turn.settings.pool or DEFAULT_POOL)
    return Pool(
        policies=tuple(policies),
        rounds=stored_rounds(turn.store, [policy.name for policy in policies]),
        learner=learner_named(turn.settings.learner),
        practice=policy_named(turn.settings.practice_policy),
    )


def deciding_policy(turn: Turn) -> tuple[Policy[Any], str]:
    """The policy that decides at the turn's time, and why."""
    return read_pool(turn).deciding([turn.at])[0]


def require_markets(work: Work) -> None:
    """Raise `MarketError` if a turn has no market to follow."""
    if not work.markets:
        raise MarketError(
            "no market has enough history at this time",
            expected="at least one market with a day of counts on the slot grid",
            remedy="`slackwater markets` shows what is there; choose another --at",
        )


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
