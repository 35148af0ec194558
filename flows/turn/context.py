"""Inputs of the stages of a turn: warehouse, time and settings, jobs, and the histories of peers (M1.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pandas as pd

from slackwater.flows.command import Warehouse, call_with_progress, say
from slackwater.flows.config import Settings
from slackwater.flows.following import FollowedMarket, Freshness, step_of
from slackwater.flows.histories import Reads, try_histories
from slackwater.flows.ledger.jobs import StoredJob, stored_jobs
from slackwater.flows.ledger.stages import LIVE, RunRow, recorded_failure
from slackwater.optimization.fan import Fan, in_turn
from slackwater.warehouse.history import History, Market
from slackwater.warehouse.store.connection import Store

P = ParamSpec("P")
T = TypeVar("T")
Counts = dict[str, dict[str, int]]  # Number of rows by source and by result (added, repeated or rejected)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnValues:
    """Values of one turn of the loop: its time, settings and name, and how it computes; no warehouse.

    ``at`` is the logical time, the start of a slot. With ``own_end`` every market is read at the
    end of its own record instead, if that is earlier. ``run_id`` names the turn; a second turn of
    the same name writes nothing new. Functions called through ``fan`` take values and return
    values. ``show`` is called with the decisions as soon as they are stored. ``made`` is `LIVE` if
    the turn runs in its own slot, else the turn is a backfill. ``clock`` is the present time, used
    only to report rows from the future and records that ended long ago; no result depends on it.
    """

    at: pd.Timestamp
    settings: Settings
    run_id: str
    own_end: bool = False
    fan: Fan = field(default=in_turn)
    say: Callable[[str], None] = field(default=lambda _: None)
    show: Callable[[Sequence[Mapping[str, Any]]], None] = field(default=lambda _: None)
    made: str = LIVE
    clock: pd.Timestamp | None = None

    @property
    def terms_at(self) -> pd.Timestamp | None:
        """Time as of which terms of jobs are read: the turn's time, or with ``own_end`` None, the present, as for jobs (M2.9)."""
        return None if self.own_end else self.at

    @property
    def freshness(self) -> Freshness:
        """Test whether an observation is too old to decide on."""
        return Freshness(clock=self.clock if self.own_end else None)

    def done(self, stage: str, details: Mapping[str, Any]) -> RunRow:
        """Return the ledger row that records a completed stage of the turn."""
        return RunRow(run=self.run_id, at=self.at, stage=stage, details=details, made=self.made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn(TurnValues):
    """A turn on a warehouse: readers take it, stages take only `TurnValues` and facts.

    Only the process that owns ``store`` writes. ``reads`` is a cache of observations, which must be
    ingested by then (None: the turn creates its own).
    """

    store: Store
    reads: Reads | None = None

    def __post_init__(self) -> None:
        """Create a cache of observations if none is shared between turns."""
        if self.reads is None:
            object.__setattr__(self, "reads", Reads(self.store))

    @property
    def observations(self) -> Reads:
        """The cache of observations."""
        return cast(Reads, self.reads)  # set in `__post_init__`

    def read(self, reader: Callable[Concatenate[Store, P], T], *args: P.args, **options: P.kwargs) -> T:
        """Return the result of a reader of the warehouse; stages read by this function only, and `write` stores their results."""
        return reader(self.store, *args, **options)

    def market_rows(self, at: pd.Timestamp | None = None) -> list[dict[str, Any]]:
        """Return the markets known at a time (None: the time of the turn) as rows."""
        return self.observations.market_rows(self.at if at is None else at)

    def jobs(self) -> list[StoredJob]:
        """Return every readable job with its terms at the turn's time (M2.9)."""
        return self.read(stored_jobs, known_at=self.terms_at)

    def recorded_failure(self, stage: str) -> AbstractContextManager[None]:
        """Return a context manager that records in the ledger of runs why a stage fails."""
        return recorded_failure(self.store, self.run_id, at=self.at, stage=stage, say=self.say)


def query_turn(
    session: Warehouse,
    store: Store,
    at: pd.Timestamp,
    name: str,
    *,
    own_end: bool = False,
    clock: pd.Timestamp | None = None,
) -> Turn:
    """Return the turn in which a command computes its answer, with progress; it is not recorded."""
    return Turn(
        store=store, at=at, settings=session.config, run_id=name, own_end=own_end, clock=clock, say=say,
        fan=call_with_progress,
    )  # fmt: skip


def run_id_of(at: pd.Timestamp, what: str = "run") -> str:
    """Return the name of the turn at a logical time: the same time gives the same name."""
    return f"{what}-{at:%Y%m%dT%H%M%SZ}"


# ---
# Peers of followed markets.

MOST_PEERS = 12  # Most peers read for a market


def peers_of(
    turn: Turn, followed_markets: Sequence[FollowedMarket], *, start: pd.Timestamp
) -> dict[FollowedMarket, list[History]]:
    """Return for each market the histories from ``start`` of its peers: markets of the same source and instance type.

    At most `MOST_PEERS`, those of the same region first, then by name. The histories are as known
    at the turn's time, also where a market is read at an earlier time: `market_record` drops rows
    learned later. Histories that cannot be read are left out.
    """
    step, listed = step_of(turn.settings), turn.market_rows()
    peers: dict[FollowedMarket, list[FollowedMarket]] = {}
    for followed in dict.fromkeys(followed_markets):
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
    needed = list(dict.fromkeys(peer for of_market in peers.values() for peer in of_market))
    found = dict(zip(needed, try_histories(turn, [(peer, start) for peer in needed]), strict=True))
    return {
        followed: [history for peer in of_market if isinstance(history := found[peer], History)]
        for followed, of_market in peers.items()
    }


def _peer(turn: Turn, row: Mapping[str, Any], step: pd.Timedelta) -> FollowedMarket:
    last = pd.Timestamp(str(row["last_observed"])).ceil(step)
    return FollowedMarket(
        market=Market.parse(str(row["market"])), source=str(row["source"]), at=min(last, turn.at.floor(step))
    )
