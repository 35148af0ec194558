"""What the completeness map is drawn from: a few reads of the warehouse, each one statement for all markets and slots."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from flows.config import Settings
from flows.frames import rows_of
from flows.freshness import Promise, promises_of
from flows.markets import find_market, step_of
from warehouse.errors import MarketError
from warehouse.queries import read_sql
from warehouse.store import Store, list_markets
from warehouse.times import microseconds, moment

_US: Final = "datetime64[us, UTC]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The slots of a map: ``first`` to ``last`` by ``step``, all on the grid, as seen from ``at``."""

    first: pd.Timestamp
    last: pd.Timestamp
    step: pd.Timedelta
    at: pd.Timestamp

    @property
    def slots(self) -> pd.DatetimeIndex:
        """Starts of the slots."""
        return pd.date_range(self.first, self.last, freq=self.step, unit="us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything the map is made of, as frames; times are UTC.

    ``seen``: market, source, slot, count_at, price_at (newest observation known at the slot's start, NaT if none): a row for
    every market and slot, the map's rows. ``issued``: market, source, slot, planned, models, newest_row, price_fallback,
    count_fallback, others_fell_back, backfilled. ``runs``: slot, stage, status, reason, left_out (list of sentences).
    ``jobs``: name, market, source, created, start, deadline, finished, scored (NaT if not), origin, resumable.
    ``decided``: job, slot.
    """

    window: Window
    planner: str
    promises: tuple[Promise, ...]
    seen: pd.DataFrame
    issued: pd.DataFrame
    runs: pd.DataFrame
    jobs: pd.DataFrame
    decided: pd.DataFrame


def read_facts(store: Store, settings: Settings, window: Window, *, pattern: str = "") -> Facts:
    """The facts of a window; ``pattern`` keeps one market (``key`` or ``key@source``).

    The markets are those with a forecast of the planner in the window or up to ``history_days`` before it, and those of
    jobs that run or end in the window. Nothing is read that was not known at the window's ``at``.
    """
    bounds = {
        "first": moment(window.first, "start"),
        "last": moment(window.last, "end"),
    }
    jobs = _jobs(store, settings, window, bounds)
    markets = [one for one in _followed(store, settings, window, jobs) if _wanted(one, pattern)]
    kept = pd.MultiIndex.from_tuples(markets, names=["market", "source"])
    jobs = jobs[pd.MultiIndex.from_frame(jobs[["market", "source"]]).isin(kept)]
    issued = _times(
        store.arrow(
            read_sql("completeness_issued"),
            {
                "planner": settings.planner,
                "step_seconds": int(window.step.total_seconds()),
                **bounds,
            },
        ).to_pandas(),
        {"slot": "slot", "newest_us": "newest_row"},
    )
    return Facts(
        window=window,
        planner=settings.planner,
        promises=promises_of(store, markets, at=window.at, step=window.step),
        seen=_seen(store, markets, window),
        issued=issued[pd.MultiIndex.from_frame(issued[["market", "source"]]).isin(kept)],
        runs=_runs(store, bounds),
        jobs=jobs,
        decided=_decided(store, jobs, bounds),
    )


def followed_markets(store: Store, settings: Settings, window: Window) -> list[tuple[str, str]]:
    """(market, source) of everything that is followed in a window, sorted: the rows of its map."""
    bounds = {"first": moment(window.first, "start"), "last": moment(window.last, "end")}
    return _followed(store, settings, window, _jobs(store, settings, window, bounds))


def _wanted(market: tuple[str, str], pattern: str) -> bool:
    return not pattern or pattern in (market[0], f"{market[0]}@{market[1]}")


def _times(frame: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """Columns of microseconds since the epoch as UTC times, under new names."""
    for old, new in names.items():
        frame[old] = pd.to_datetime(frame[old].astype("Int64"), unit="us", utc=True).astype(_US)
        frame = frame.rename(columns={old: new})
    return frame


def _followed(store: Store, settings: Settings, window: Window, jobs: pd.DataFrame) -> list[tuple[str, str]]:
    """Markets with a forecast of the planner lately, and those of the window's jobs."""
    since = window.first - pd.Timedelta(days=settings.history_days)
    rows = store.execute(
        "SELECT DISTINCT market, source FROM vintages WHERE issued_at > ? AND issued_at <= ? AND step_seconds = ? AND model = ?",
        [
            moment(since, "since"),
            moment(window.last, "end"),
            int(window.step.total_seconds()),
            settings.planner,
        ],
    )
    found = {(str(market), str(source)) for market, source in rows}
    due = jobs[(jobs["origin"] != "practice") | jobs["scored"].isna()]
    return sorted(found | set(zip(due["market"], due["source"], strict=True)))


def _seen(store: Store, markets: list[tuple[str, str]], window: Window) -> pd.DataFrame:
    """The newest observation known in every slot."""
    frame = store.arrow(
        read_sql("completeness_seen"),
        {
            "market": [market for market, _ in markets],
            "source": [source for _, source in markets],
            "first_us": microseconds(window.first, "start"),
            "last_us": microseconds(window.last, "end"),
            "step_us": microseconds(window.step, "step"),
            "known_at": moment(window.at, "at"),
        },
    ).to_pandas()
    return _times(frame, {"slot": "slot", "price_us": "price_at", "count_us": "count_at"})


def _runs(store: Store, bounds: dict[str, Any]) -> pd.DataFrame:
    frame = store.arrow(read_sql("completeness_runs"), bounds).to_pandas()
    frame["left_out"] = [[] if text == "[]" else list(json.loads(text) or ()) for text in frame["left_out"]]
    return _times(frame, {"slot": "slot"})


def _jobs(store: Store, settings: Settings, window: Window, bounds: dict[str, Any]) -> pd.DataFrame:
    """The jobs with their sources filled in; those of markets that nothing is known of are left out."""
    frame = store.arrow(read_sql("completeness_jobs"), bounds).to_pandas()
    names = ("created", "start", "deadline", "finished", "scored")
    frame = _times(frame, {f"{name}_us": name for name in names})
    if (frame["source"] == "").any():
        listed = rows_of(list_markets(store, known_at=window.at))
        frame["source"] = [
            row["source"] or _source_of(store, settings, row["market"], window, listed)
            for row in rows_of(frame)
        ]
    frame["deadline"] = frame["deadline"].dt.floor(step_of(settings))
    return frame[frame["source"] != ""].reset_index(drop=True)


def _source_of(
    store: Store, settings: Settings, market: str, window: Window, listed: Sequence[Mapping[str, Any]]
) -> str:
    """The source that answers for a market whose job names none, "" if there is none."""
    try:
        return find_market(store, market, at=window.at, settings=settings, listed=listed).source
    except MarketError:
        return ""


def _decided(store: Store, jobs: pd.DataFrame, bounds: dict[str, Any]) -> pd.DataFrame:
    frame = store.arrow(
        "SELECT job, epoch_us(slot) AS slot FROM decisions WHERE slot >= $first AND slot <= $last", bounds
    ).to_pandas()
    frame = _times(frame, {"slot": "slot"})
    return frame[frame["job"].isin(jobs["name"])]
