"""Which markets a turn follows, at what time each is taken, and how its history, its peers' and its forecasts are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from flows.config import Settings
from flows.ledger.jobs import StoredJob
from flows.show.formats import rows_of
from flows.turn.context import Reads, Turn
from forecasting.quantiles import Forecast
from warehouse.asof import HistoryAssumptions, HistoryRequest, load_histories
from warehouse.errors import MarketError
from warehouse.history import History, Market
from warehouse.issued import read_forecasts, read_vintages
from warehouse.observations import list_markets
from warehouse.sources.contract import matches
from warehouse.store.connection import Store

#: A market with less history than this is not followed unless a job names it.
LEAST_SPAN = pd.Timedelta(days=3)
#: Launch tests first, then instances held, then offers listed, which are not launch tests; and how many of each at most.
KINDS = {"probe": 20, "held": 2, "offers": 2}
#: Most peers of a market that are read.
MOST_PEERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A market of one source, taken at ``at`` (the turn's time, or the end of its own record)."""

    market: Market
    source: str
    at: pd.Timestamp

    @property
    def key(self) -> str:
        """``market@source``: how the command line and the tables name it."""
        return f"{self.market.key}@{self.source}"


def parse_market(text: str) -> tuple[Market, str | None]:
    """Read ``provider/region/zone/instance_type[@source]``; raises `MarketError`."""
    key, _, source = text.partition("@")
    return Market.parse(key), source or None


def step_of(settings: Settings) -> pd.Timedelta:
    """The slot length of the settings."""
    return pd.Timedelta(minutes=settings.step_minutes)


def read_history(
    store: Store,
    followed: Followed,
    *,
    settings: Settings,
    start: pd.Timestamp | None = None,
    on_demand_usd: float | None = None,
) -> History:
    """History of a followed market as known at its time, on the grid of the settings, under their assumptions.

    It has the counts read between slots too, where there were any. ``on_demand_usd`` is assumed where none was observed.
    """
    asked = _asked(followed, settings, start=start, on_demand_usd=on_demand_usd)
    return load_histories(store, [asked])[0]


def read_histories(
    store: Store, starts: Mapping[Followed, pd.Timestamp], *, settings: Settings
) -> dict[Followed, History]:
    """What `read_history` gives for every market from its start on, by a few statements for all of them."""
    asked = [_asked(followed, settings, start=start) for followed, start in starts.items()]
    return dict(zip(starts, load_histories(store, asked), strict=True))


def turn_histories(turn: Turn, starts: Mapping[Followed, pd.Timestamp]) -> dict[Followed, History]:
    """`read_histories` of a turn."""
    return dict(zip(starts, read_all(turn, list(starts.items())), strict=True))


def read_all(turn: Turn, asked: Sequence[tuple[Followed, pd.Timestamp]]) -> list[History]:
    """The history of each market from a start on, in the order asked for; raises `MarketError` for the first without one."""
    found = []
    for history in try_histories(turn, asked):
        if isinstance(history, MarketError):
            raise history
        found.append(history)
    return found


def try_histories(turn: Turn, asked: Sequence[tuple[Followed, pd.Timestamp]]) -> list[History | MarketError]:
    """The history of each market from a start on, or why it cannot be read; in the order asked for, by a few statements."""
    reads = Reads(turn.store) if turn.reads is None else turn.reads
    return reads.histories([_asked(one, turn.settings, start=start) for one, start in asked])


def _asked(
    followed: Followed,
    settings: Settings,
    *,
    start: pd.Timestamp | None,
    on_demand_usd: float | None = None,
) -> HistoryRequest:
    return HistoryRequest(
        market=followed.market,
        start=start,
        end=followed.at,
        step=step_of(settings),
        known_at=followed.at,
        source=followed.source,
        trust=settings.trust,
        assumptions=HistoryAssumptions(
            spot_share=settings.assumed_spot_share,
            always_available=settings.assumed_capacity or None,
            on_demand_usd=on_demand_usd,
        ),
        within=True,
    )


def own_time(last: pd.Timestamp, at: pd.Timestamp, step: pd.Timedelta, *, own_end: bool) -> pd.Timestamp:
    """The slot at which a market is taken: the turn's, or with ``own_end`` the last one its record reaches."""
    return min(at, last.floor(step)) if own_end else at.floor(step)


def find_market(
    store: Store,
    text: str,
    *,
    at: pd.Timestamp,
    settings: Settings,
    own_end: bool = False,
    listed: Sequence[Mapping[str, Any]] | None = None,
) -> Followed:
    """The followed market that a user's text means; raises `MarketError` with the nearest known ones.

    Without ``@source`` the most trusted source of the market that was known at ``at`` is taken. ``listed`` are the rows of the
    listing at ``at``, for callers that ask for many.
    """
    market, source = parse_market(text)
    if listed is None:
        listed = rows_of(list_markets(store, known_at=at))
    rows = [one for one in listed if one["market"] == market.key and source in (None, one["source"])]
    if not rows:
        known = dict.fromkeys(str(one["market"]) for one in listed)
        near = [key for key in known if key.split("/")[-1] == market.instance_type][:3]
        raise MarketError(
            f"market {text!r} has no observations known at {at}",
            expected=f"for example {', '.join(near)}" if near else "a market that was ingested",
            remedy="`slackwater markets` lists them",
        )
    row = min(
        rows,
        key=lambda one: (_trust_rank(one["source"], settings), not one["has_counts"], one["source"]),
    )
    when = own_time(pd.Timestamp(row["last_observed"]), at, step_of(settings), own_end=own_end)
    return Followed(market=market, source=str(row["source"]), at=when)


def _trust_rank(source: str, settings: Settings) -> int:
    return next((i for i, glob in enumerate(settings.trust) if matches(source, (glob,))), len(settings.trust))


def choose_markets(turn: Turn, *, most: int) -> list[tuple[Followed, int, pd.Timestamp]]:
    """The markets to follow when no job names them, with capacity and first observation, most informative first (ours).

    A market qualifies with counts probed at least once a slot, `LEAST_SPAN` of history, and observations still coming
    in at its time.
    Of those, launch tests go before instances held and those before offers; within a kind the larger capacity, a measured price and
    the name decide. `KINDS` caps each kind.
    """
    step = step_of(turn.settings)
    rows = [row for row in turn.listed() if _qualifies(row, turn, step)]
    rows.sort(key=_informative)
    left = dict(KINDS)
    chosen: list[tuple[Followed, int, pd.Timestamp]] = []
    for row in rows:
        kind = str(row["kind"])
        if len(chosen) < most and left.get(kind, 0) > 0:
            left[kind] -= 1
            last = pd.Timestamp(row["last_observed"])
            followed = Followed(
                market=Market.parse(row["market"]),
                source=str(row["source"]),
                at=own_time(last, turn.at, step, own_end=turn.own_end),
            )
            chosen.append((followed, int(row["capacity"]), pd.Timestamp(row["first_observed"])))
    return chosen


def _qualifies(row: dict[str, Any], turn: Turn, step: pd.Timedelta) -> bool:
    """Whether a row of the listing has enough of a record at the turn's time."""
    first, last = pd.Timestamp(row["first_observed"]), pd.Timestamp(row["last_observed"])
    gap = pd.Timedelta(seconds=float(row["gap_seconds"])) if row["gap_seconds"] > 0 else step
    fresh = turn.own_end or turn.at - last <= 3 * max(gap, step)
    return bool(row["has_counts"]) and gap <= step and last - first >= LEAST_SPAN and fresh


def _informative(row: dict[str, Any]) -> tuple[int, int, bool, str, str]:
    """Sort key: kind, larger capacity, a measured price, name."""
    kinds = list(KINDS)
    rank = kinds.index(row["kind"]) if row["kind"] in kinds else len(kinds)
    return rank, -int(row["capacity"]), not row["has_price"], str(row["market"]), str(row["source"])


def peers_of(turn: Turn, asked: Sequence[Followed], *, start: pd.Timestamp) -> dict[Followed, list[History]]:
    """Of each market histories from ``start`` of others of the same source and instance type, at most `MOST_PEERS`.

    Those of the same region come first, then by name. They hold what was known at the turn's time, whatever the time
    of the market: `market_record` leaves out what was not known by its. What cannot be read is left out.
    """
    step, listed = step_of(turn.settings), turn.listed()
    peers: dict[Followed, list[Followed]] = {}
    for followed in dict.fromkeys(asked):
        market = followed.market
        kind = (followed.source, market.instance_type)
        others = [
            row
            for row in listed
            if (row["source"], row["instance_type"]) == kind
            and row["has_counts"]
            and row["market"] != market.key
        ]
        ranked = sorted(others, key=lambda row: (row["region"] != market.region, row["market"]))
        peers[followed] = [_peer(turn, row, step) for row in ranked[:MOST_PEERS]]
    needed = list(dict.fromkeys(one for own in peers.values() for one in own))
    found = dict(zip(needed, try_histories(turn, [(one, start) for one in needed]), strict=True))
    return {
        followed: [history for one in own if isinstance(history := found[one], History)]
        for followed, own in peers.items()
    }


def _peer(turn: Turn, row: Mapping[str, Any], step: pd.Timedelta) -> Followed:
    last = pd.Timestamp(str(row["last_observed"])).ceil(step)
    return Followed(
        market=Market.parse(str(row["market"])),
        source=str(row["source"]),
        at=min(last, turn.at.floor(step)),
    )


def stored_forecasts(
    store: Store,
    followed: Followed,
    model: str,
    *,
    start: pd.Timestamp,
    end: pd.Timestamp,
    step: pd.Timedelta,
) -> list[Forecast]:
    """The vintages of one model on one market, issued from ``start`` to ``end``, ascending."""
    return read_forecasts(
        store,
        Forecast,
        market=followed.market,
        source=followed.source,
        model=model,
        start=start,
        end=end,
        step=step,
    )


def planned_forecasts(turn: Turn, jobs: Sequence[tuple[StoredJob, Followed]]) -> dict[str, list[Forecast]]:
    """By job the planner's vintages in its slots up to its market's time, ascending, as they were issued (M6.1)."""
    ends = {job.request.name: min(job.deadline, followed.at) for job, followed in jobs}
    found: dict[str, list[Forecast]] = {}
    for step in dict.fromkeys(job.step for job, _ in jobs):
        own = [(job, followed) for job, followed in jobs if job.step == step]
        vintages = read_vintages(
            turn.store,
            Forecast,
            markets=dict.fromkeys((followed.market, followed.source) for _, followed in own),
            models=[turn.settings.planner],
            start=min(job.start for job, _ in own),
            end=max(ends[job.request.name] for job, _ in own),
            step=step,
        )
        for job, followed in own:
            issued = vintages.get((followed.market.key, followed.source, turn.settings.planner), [])
            end = ends[job.request.name]
            found[job.request.name] = [one for one in issued if job.start <= one.issued_at <= end]
    return found
