"""Work of a turn: the followed markets and the jobs on them, with example jobs in a warehouse without jobs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from slackwater.flows.following import FollowedMarket, choose_markets, step_of
from slackwater.flows.histories import try_histories
from slackwater.flows.ledger.jobs import StoredJob, save_jobs, unreadable_jobs
from slackwater.flows.places import market_of, placed_in, places_of, propose_markets
from slackwater.flows.turn.context import Turn
from slackwater.optimization.job.request import JobRequest, check_bounds, read_request
from slackwater.optimization.job.units import can_run_on
from slackwater.warehouse.errors import InputError, JobError, MarketError

OPEN_EXAMPLES = 8  # Most example jobs added to a warehouse without jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Work of a turn: the followed markets, and the jobs that run or have ended unscored, each with its market.

    ``left_out`` are messages on jobs and markets that could not be read at this time, and on the markets
    proposed for a job without markets; other jobs are not affected. ``places`` has by job name the markets of
    each multi-market job; in ``running`` and ``ended`` such a job has the first of them.
    """

    markets: tuple[FollowedMarket, ...]
    running: tuple[tuple[StoredJob, FollowedMarket], ...]
    ended: tuple[tuple[StoredJob, FollowedMarket], ...]
    left_out: tuple[str, ...] = ()
    places: Mapping[str, tuple[FollowedMarket, ...]] = field(default_factory=dict)

    def jobs_in_markets(self) -> list[tuple[StoredJob, FollowedMarket]]:
        """Return each job with each of its markets."""
        return [
            (job, place)
            for job, market in (*self.running, *self.ended)
            for place in self.places.get(job.request.name, (market,))
        ]

    def jobs_on(self, followed: FollowedMarket) -> list[StoredJob]:
        """Return the jobs that run or may run on one market."""
        return [job for job, market in self.jobs_in_markets() if market == followed]


def find_work(turn: Turn, requests: Sequence[JobRequest], *, scored: Collection[str]) -> Work:
    """Store the requests of this turn, add examples to a warehouse without user jobs, and sort the jobs.

    Start and deadline that a request leaves open count from the time of its market (`_place_request`). The
    markets of jobs come first, then the most informative others, up to ``max_markets`` in all; a
    request without a market gets the `propose_markets` markets. ``scored`` names the jobs on which no
    policy is left to be replayed (`Rounds.settled`).
    """
    left_out: list[str] = []
    followed_markets = []
    for request in requests:
        if request.names_no_market:
            request, note_of_choice = propose_markets(turn, request)
            left_out.append(note_of_choice)
        followed_markets.append(_place_request(turn, request))
    known = _add_jobs(turn, followed_markets, origin="user")
    chosen = choose_markets(turn, most=turn.settings.max_markets)
    readable = _readable(turn, [followed for followed, _, _ in chosen], left_out)
    chosen = [place for place in chosen if place[0] in readable]
    seen = _visible(turn, known)
    if not _has_users(turn, seen) and not any(job.deadline > turn.at for job in seen):
        capacities = [(followed, capacity) for followed, capacity, _ in chosen]
        examples = open_examples(example_requests(), capacities)
        known = _add_jobs(turn, examples, origin="example")
    return sorted_jobs(turn, known, [followed for followed, _, _ in chosen], left_out, scored)


def _add_jobs(turn: Turn, requests: Sequence[JobRequest], *, origin: str) -> list[StoredJob]:
    """Store new jobs, and return every job with its terms at the turn's time."""
    save_jobs(turn.store, requests, origin=origin, at=turn.at, step=step_of(turn.settings))
    return turn.jobs()


def _place_request(turn: Turn, request: JobRequest) -> JobRequest:
    """Return a request with its relative times counted from the time at which its market is read.

    That is the end of the market's record or the turn's time. If the market cannot be found, the
    turn's time is used and `sorted_jobs` reports the error.
    """
    at = turn.at
    if turn.own_end:
        with suppress(InputError):
            at = placed_in(turn, request)[1][0].at
    return request.with_place(at=at, market=request.market, source=request.source)


def _visible(turn: Turn, jobs: Sequence[StoredJob]) -> list[StoredJob]:
    """Return the jobs added by the turn's time; all jobs if each market is read at the end of its record."""
    return [job for job in jobs if turn.own_end or job.created_at <= turn.at]


def _has_users(turn: Turn, jobs: Sequence[StoredJob]) -> bool:
    """Return whether there is a user job; without ``own_end`` those added after their deadline do not count."""
    return any(job.origin == "user" and (turn.own_end or job.deadline > job.created_at) for job in jobs)


def panel_mates(turn: Turn, followed_markets: Collection[FollowedMarket]) -> list[FollowedMarket]:
    """Return the other followed markets of the same sources, which panel forecasters are estimated on too."""
    wanted = {
        followed.key for followed in followed_markets
    }  # the turn may follow the same market at another time
    sources = {followed.source for followed in followed_markets}
    chosen = [followed for followed, _, _ in choose_markets(turn, most=turn.settings.max_markets)]
    mates = [mate for mate in chosen if mate.source in sources and mate.key not in wanted]
    readable = _readable(turn, mates, [])
    return [mate for mate in mates if mate in readable]


def _readable(
    turn: Turn, followed_markets: Sequence[FollowedMarket], left_out: list[str]
) -> set[FollowedMarket]:
    """Return the markets that have a history at their time; the errors of the others are appended to ``left_out``."""
    found: set[FollowedMarket] = set()
    for followed, history in zip(
        followed_markets,
        try_histories(turn, [(market, market.at) for market in followed_markets]),
        strict=True,
    ):
        if isinstance(history, MarketError):
            text = f"market {followed.key} is left out: {history}"
            left_out += [] if text in left_out else [text]
        else:
            found.add(followed)
    return found


def sorted_jobs(
    turn: Turn,
    jobs: Sequence[StoredJob],
    chosen: Sequence[FollowedMarket],
    left_out: list[str],
    scored: Collection[str],
) -> Work:
    """Return the jobs that run at their market's time and those that ended by then unscored; nothing is stored.

    ``chosen`` are further markets to follow. Messages on jobs and markets that cannot be read are
    appended to ``left_out``, which also goes into the result. Example jobs are no longer planned
    once there is a user job; after their end they are replayed as others are.
    """
    seen = _visible(turn, jobs)
    users = _has_users(turn, seen)
    running: list[tuple[StoredJob, FollowedMarket]] = []
    ended: list[tuple[StoredJob, FollowedMarket]] = []
    places: dict[str, tuple[FollowedMarket, ...]] = {}
    left_out += turn.read(unreadable_jobs, known_at=turn.terms_at)
    for job in seen:
        if job.request.name in scored and job.deadline <= turn.at:
            continue  # a year has thousands of such jobs, and nothing is left to do for them
        if users and job.origin == "example" and job.deadline > turn.at:
            continue
        try:
            check_bounds(job.request)
        except JobError as error:  # accepted by an older version
            left_out.append(f"job {job.request.name} is left out: {error}")
            continue
        if job.request.may_move:
            found = _places_now(turn, job, left_out) if job.start <= turn.at else ()
            if found and job.start <= found[0].at:
                (ended if job.deadline <= found[0].at else running).append((job, found[0]))
                places[job.request.name] = found
            elif found:
                left_out.append(_begins_after(job, found[0]))
            continue
        try:
            followed = market_of(turn, job.request.place).for_job(job.request)
        except MarketError as error:
            left_out.append(f"job {job.request.name} is left out: {error}")
            continue
        if (followed.on_demand or followed not in chosen) and not _readable(turn, [followed], left_out):
            left_out.append(f"job {job.request.name} is left out, as its market cannot be read")
            continue
        if job.deadline <= followed.at:
            ended.append((job, followed))
        elif job.start <= followed.at:
            running.append((job, followed))
        elif job.start <= turn.at:
            left_out.append(_begins_after(job, followed))
    ended.sort(key=lambda item: (item[0].deadline, item[0].request.name))
    of_jobs = [
        place for job, followed in (*running, *ended) for place in places.get(job.request.name, (followed,))
    ]
    markets = list(dict.fromkeys([*of_jobs, *chosen]))
    most = max(turn.settings.max_markets, len(set(of_jobs)))
    return Work(
        markets=tuple(markets[:most]),
        running=tuple(running),
        ended=tuple(ended),
        left_out=tuple(left_out),
        places=places,
    )


def _begins_after(job: StoredJob, followed: FollowedMarket) -> str:
    """Return the message for a job that begins by the turn's time, but after the end of its market's record."""
    return (
        f"job {job.request.name} is left out: it begins at {job.start}, the record of {followed.key} ends at {followed.at}; "
        "give it an earlier start, or newer data"
    )


def _places_now(turn: Turn, job: StoredJob, left_out: list[str]) -> tuple[FollowedMarket, ...]:
    """Return the readable markets of a multi-market job; none if its home cannot be read."""
    try:
        found = places_of(turn, job.request, notify=left_out.append)
    except InputError as error:
        left_out.append(f"job {job.request.name} is left out: {error}")
        return ()
    readable = _readable(turn, found, left_out)
    if job.request.market is not None and found[0] not in readable:
        return ()
    return tuple(place for place in found if place in readable)


def require_markets(work: Work) -> None:
    """Raise `MarketError` if a turn has no market to follow."""
    if not work.markets:
        raise MarketError(
            "no market has enough history at this time",
            expected="at least one market with a day of counts on the slot grid",
            remedy="`slackwater markets` lists the markets; choose another --at",
        )


#: Names of the example job files; other examples are TOML files too.
EXAMPLES = ("bert-sweep", "llama-8b-lora", "qwen-14b-sft")


def example_requests() -> list[JobRequest]:
    """Return the requests of the example job files, in the order of `EXAMPLES`."""
    folder = Path(__file__).parents[2] / "examples"
    files = [folder / f"{name}.toml" for name in EXAMPLES]
    if not all(file.is_file() for file in files):
        raise JobError(f"no example job in {folder}", remedy="give a job with --job FILE")
    return [read_request(file) for file in files]


def fitting(requests: Sequence[JobRequest], capacity: int) -> list[JobRequest]:
    """Return the requests that suit a capacity: single-instance requests for markets with one instance, else larger requests."""
    single = [request for request in requests if (request.gpus_max or request.n_max) == 1]
    wide = [request for request in requests if request not in single]
    return (single or wide) if capacity <= 1 else (wide or single)


def open_examples(
    requests: Sequence[JobRequest], markets: Sequence[tuple[FollowedMarket, int]]
) -> list[JobRequest]:
    """Return example jobs that start now, on markets (with capacity) as different as possible: provider, type, source."""
    groups: dict[tuple[str, str, str], list[tuple[FollowedMarket, int]]] = {}
    for followed, capacity in markets:
        kind = (followed.market.provider, followed.market.instance_type, followed.source)
        groups.setdefault(kind, []).append((followed, capacity))
    kinds = sorted(
        groups.values(), key=lambda group: group[0][1] <= 1
    )  # stable sort: single-instance markets come last
    rounds = max((len(group) for group in kinds), default=0)
    order = [group[i] for i in range(rounds) for group in kinds if i < len(group)]
    jobs = []
    for i, (followed, capacity) in enumerate(order[:OPEN_EXAMPLES]):
        able = [request for request in requests if can_run_on(request, followed.market)]
        choice = fitting(able, capacity)
        request = choice[i % len(choice)]
        name = f"example-{request.name}-{followed.at:%Y%m%d-%H%M}-{i + 1}"
        jobs.append(
            request.model_copy(update={"name": name}).with_place(
                at=followed.at, market=followed.market.key, source=followed.source
            )
        )
    return jobs
