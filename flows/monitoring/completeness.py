"""Freshness of every source, and the state of every market, stage and slot (M1.3, M6.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.config import Settings
from slackwater.flows.following import step_of
from slackwater.flows.ledger.jobs import stored_jobs
from slackwater.flows.ledger.stages import STAGES
from slackwater.flows.places import find_market, places_of
from slackwater.flows.show.formats import first_of, rows_of
from slackwater.flows.turn.context import Turn
from slackwater.warehouse.asof import KnownSeries, SlotGrid, known_series, pick_product
from slackwater.warehouse.catalogue import known_conventions
from slackwater.warehouse.documents import read_list, read_sql
from slackwater.warehouse.errors import InputError, SettingsError
from slackwater.warehouse.history import Market
from slackwater.warehouse.issued import read_rows
from slackwater.warehouse.listing import list_markets
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds, moment

_ZERO: Final = pd.Timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUpdate:
    """Expected updates of a market's counts or prices at a source: newest observation and maximum age (M1.3).

    ``kind`` is "count" or "price", ``sid`` the series (of several products, the product used for
    planning). ``every`` is the nominal gap of counts, None for prices, which are stored on change.
    ``newest`` is the time of the newest observation, None before the first. A ``constant`` price is
    a list price stored once: it is valid until it is replaced, as in histories.
    """

    market: str
    source: str
    kind: str
    sid: int
    max_age: pd.Timedelta
    every: pd.Timedelta | None
    newest: pd.Timestamp | None
    probed: bool = False
    constant: bool = False

    @property
    def subject(self) -> str:
        """Market and source as ``market@source``."""
        return f"{self.market}@{self.source}"


def expected_updates(
    store: Store, markets: Iterable[tuple[str, str]], *, at: pd.Timestamp, step: pd.Timedelta
) -> tuple[ExpectedUpdate, ...]:
    """Return the expected updates of some markets (key, source), from the gaps stated or observed until ``at``; a single query."""
    pairs = list(markets)
    grid = SlotGrid(
        first_us=None,
        last_us=microseconds(at, "at"),
        step_us=microseconds(step, "step"),
        known_at=moment(at, "at"),
    )
    requests = [(Market.parse(market), grid) for market, _ in pairs]
    found = []
    for (market, source), known in zip(pairs, known_series(store, requests), strict=True):
        for kind in ("availability", "price"):
            own = [product for product in known if product.source == source and product.kind == kind]
            if (product := pick_product(own)) is not None:
                found.append(_promise(market, product, grid, probed=known_conventions().probed_price(source)))
    return tuple(found)


def _promise(market: str, series: KnownSeries, grid: SlotGrid, *, probed: bool) -> ExpectedUpdate:
    counts = series.kind == "availability"
    return ExpectedUpdate(
        market=market,
        source=series.source,
        kind="count" if counts else "price",
        sid=series.sid,
        max_age=pd.Timedelta(series.age(grid), unit="us"),
        every=pd.Timedelta(series.nominal_us, unit="us") if counts and series.nominal_us else None,
        newest=None if series.latest_us is None else pd.Timestamp(series.latest_us, unit="us", tz="UTC"),
        probed=probed,
        constant=not counts and series.single,
    )


def freshness(promises: Sequence[ExpectedUpdate], *, at: pd.Timestamp) -> list[dict[str, Any]]:
    """Return a row per promise: age of the newest observation at ``at``, and delay of the next; None where unknown.

    Counts are expected a nominal gap after the newest observation, prices within their maximum age. A price
    read at every probe is as fresh as the counts of its source. ``late_by`` is 0 if nothing is late.
    """
    counts = {promise.subject: promise for promise in promises if promise.kind == "count"}
    rows = []
    for promise in promises:
        newest, every, limit = promise.newest, promise.every, promise.max_age
        mate = counts.get(promise.subject)
        if promise.kind == "price" and promise.probed and mate is not None and mate.newest is not None:
            every, limit = mate.every, mate.max_age
            newest = mate.newest if newest is None else max(newest, mate.newest)
        expected = None if newest is None or promise.constant else newest + (every or limit)
        rows.append(
            {
                "market": promise.market,
                "source": promise.source,
                "kind": promise.kind,
                "newest": newest,
                "age": None if newest is None else at - newest,
                "every": every,
                "expected_by": expected,
                "late_by": None if expected is None else max(at - expected, _ZERO),
                "max_age": limit,
                "stale": expected is not None and newest is not None and at - newest > limit,
            }
        )
    return rows


def feed_freshness(store: Store, settings: Settings, *, at: pd.Timestamp) -> list[dict[str, Any]]:
    """Return a row per live feed: its last fetch until ``at``, and the delay of the next by the feed's schedule.

    ``failing`` is the number of consecutive incomplete fetches up to the last, ``failing_since``
    the time of the first of them.
    """
    fetched = read_rows(store, "fetches", order_by=["logical_at"])
    fetched = fetched[fetched["logical_at"] <= at]
    every = {feed.name: pd.Timedelta(feed.every) for feed in settings.feeds}
    return [
        _feed_row(name, fetched[fetched["feed"] == name], every.get(name), at)
        for name in sorted({*fetched["feed"], *every})
    ]


def _feed_row(name: str, own: pd.DataFrame, every: pd.Timedelta | None, at: pd.Timestamp) -> dict[str, Any]:
    row: dict[str, Any] = {
        "feed": name, "fetched": None, "status": "never fetched", "failing": 0, "failing_since": None, "added": 0, "rejected": 0,
        "reason": "", "every": every, "expected_by": None, "late_by": None,
    }  # fmt: skip
    if own.empty:
        return row
    last = own.iloc[-1]
    done = own["status"].eq("done").to_numpy(dtype=bool)
    failing = int(done[::-1].argmax()) if done.any() else len(own)
    expected = None if every is None else last["logical_at"] + every
    return row | {
        "fetched": last["logical_at"],
        "status": last["status"],
        "failing": failing,
        "failing_since": own["logical_at"].iloc[-failing] if failing else None,
        "added": int(last["added"]),
        "rejected": int(last["rejected"]),
        "reason": last["reason"],
        "expected_by": expected,
        "late_by": None if expected is None else max(at - expected, _ZERO),
    }


# ---
# The completeness map: the state of every market, stage and slot (M1.3, M6.1).
#
# `read_facts` reads the warehouse, each fact with a single statement for all markets and slots; `classify` computes the map, a pure
# function of data frames. A slot of a stage is in one of `STATES`:
#
# * ``done``: ingest has a sufficiently recent observation (M1.3); forecast has the planner's forecast; allocate has a decision
#   for every running job; score has every job that ended in the slot.
# * ``fallback``: the planner's forecast exists, but a simpler model computed it.
# * ``stale``: the newest observation used was older than its maximum age, so the slot is a gap.
# * ``failed``: the stage ran and failed, or omitted this market or job; the reason explains why.
# * ``missing``: nothing was done although something was due.
# * ``not due``: nothing was known of the market yet, no job was running, no job had ended, or the work is still in progress.

_US: Final = "datetime64[us, UTC]"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMap:
    """Slots of a map: ``first`` to ``last`` by ``step``, all on the grid, as known at ``at``."""

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
    """Input of the map, as data frames; times are UTC.

    ``seen``: market, source, slot, count_at, price_at (newest observation known at the slot's
    start, NaT if none), a row per market and slot: the rows of the map. ``issued``: market, source,
    slot, planned, models, newest_row, price_fallback, count_fallback, others_fell_back, backfilled.
    ``runs``: slot, stage, status, reason, left_out (list of sentences). ``jobs``: name, market,
    source (where the job begins), created, start, deadline, finished, scored (NaT if not), origin,
    replayed (whether it is replayed when it has ended). ``decided``: job, slot, market, source of
    the decisions, by slot, including those before the window.
    """

    window: SlotMap
    planner: str
    promises: tuple[ExpectedUpdate, ...]
    seen: pd.DataFrame
    issued: pd.DataFrame
    runs: pd.DataFrame
    jobs: pd.DataFrame
    decided: pd.DataFrame


def read_facts(store: Store, settings: Settings, window: SlotMap, *, pattern: str = "") -> Facts:
    """Return the facts of a window; ``pattern`` selects a market (``key`` or ``key@source``).

    The markets are those with a forecast of the planner in the window or up to ``history_days`` before it,
    and those of jobs that run or end in the window. Only data known at the window's ``at`` is read.
    """
    bounds = {"first": moment(window.first, "start"), "last": moment(window.last, "end")}
    jobs, decided = _jobs(store, settings, window, bounds)
    markets = [
        (market, source)
        for market, source in _followed_markets(store, settings, window, jobs)
        if pattern in ("", market, f"{market}@{source}")
    ]
    kept = pd.MultiIndex.from_tuples(markets, names=["market", "source"])
    issued = _times(
        store.arrow(
            read_sql(__package__, "completeness_issued"),
            {"planner": settings.planner, "step_seconds": int(window.step.total_seconds()), **bounds},
        ).to_pandas(),
        {"slot": "slot", "newest_us": "newest_row"},
    )
    return Facts(
        window=window,
        planner=settings.planner,
        promises=expected_updates(store, markets, at=window.at, step=window.step),
        seen=_newest_observations(store, markets, window),
        issued=issued[pd.MultiIndex.from_frame(issued[["market", "source"]]).isin(kept)],
        runs=_runs(store, bounds),
        jobs=jobs,
        decided=decided,
    )


def followed_markets(store: Store, settings: Settings, window: SlotMap) -> list[tuple[str, str]]:
    """Return (market, source) of all markets followed in a window, sorted: the rows of its map."""
    bounds = {"first": moment(window.first, "start"), "last": moment(window.last, "end")}
    return _followed_markets(store, settings, window, _jobs(store, settings, window, bounds)[0])


def _times(frame: pd.DataFrame, names: dict[str, str]) -> pd.DataFrame:
    """Convert columns of microseconds since the epoch to UTC times, under new names."""
    for old, new in names.items():
        frame[old] = pd.to_datetime(frame[old].astype("Int64"), unit="us", utc=True).astype(_US)
        frame = frame.rename(columns={old: new})
    return frame


def _followed_markets(
    store: Store, settings: Settings, window: SlotMap, jobs: pd.DataFrame
) -> list[tuple[str, str]]:
    """Return the markets with a recent forecast of the planner, and those of the window's jobs."""
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
    due = jobs[(jobs["created"] < jobs["deadline"]) | jobs["scored"].isna()]
    return sorted(found | set(zip(due["market"], due["source"], strict=True)))


def _newest_observations(store: Store, markets: list[tuple[str, str]], window: SlotMap) -> pd.DataFrame:
    """Return the newest observation known in every slot."""
    frame = store.arrow(
        read_sql(__package__, "completeness_seen"),
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
    frame = store.arrow(read_sql(__package__, "completeness_runs"), bounds).to_pandas()
    frame["left_out"] = [read_list(text) for text in frame["left_out"]]
    return _times(frame, {"slot": "slot"})


def _jobs(
    store: Store, settings: Settings, window: SlotMap, bounds: dict[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the jobs, with the market in which they begin filled in, and their decisions; jobs in unknown markets are omitted.

    A multi-market job without a home market begins in the market of its first decision, else in the
    first of its markets in the order of its turns (M11.1).
    """
    frame = store.arrow(read_sql(__package__, "completeness_jobs"), bounds).to_pandas()
    names = ("created", "start", "deadline", "finished", "scored")
    frame = _times(frame, {f"{name}_us": name for name in names})
    decided = _read_decisions(store, frame, bounds)
    first = {
        row["job"]: (row["market"], row["source"]) for row in rows_of(decided.drop_duplicates("job")) if row["source"]
    }  # fmt: skip
    turn = Turn(store=store, at=window.at, settings=settings, run_id="")
    listed = cache(lambda: rows_of(list_markets(store, known_at=window.at)))
    requests = cache(
        lambda: {job.request.name: job.request for job in stored_jobs(store, known_at=window.at)}
    )

    def place_of(row: Mapping[str, Any]) -> tuple[str, str]:
        name, market = row["name"], row["market"]
        if market and row["source"]:
            return market, row["source"]
        try:
            if market:
                found = find_market(store, market, at=window.at, settings=settings, listed=listed())
                return market, found.source
            if name in first or name not in requests():
                return first.get(name, ("", ""))
            home = places_of(turn, requests()[name])[0]
        except InputError:
            return market, ""
        return home.market.key, home.source

    if not frame.empty:
        frame[["market", "source"]] = [place_of(row) for row in rows_of(frame)]
    frame["deadline"] = frame["deadline"].dt.floor(step_of(settings))
    return frame[frame["source"] != ""].reset_index(drop=True), decided


def _read_decisions(store: Store, jobs: pd.DataFrame, bounds: dict[str, Any]) -> pd.DataFrame:
    """Return the decisions of some jobs by slot to the window's end; earlier ones determine where a job begins."""
    frame = store.arrow(
        read_sql(__package__, "completeness_decided"), {"jobs": list(jobs["name"]), "last": bounds["last"]}
    ).to_pandas()
    return _times(frame, {"slot": "slot"})


_MOST_NAMED = 3  # Maximum number of jobs named in a reason
#: Order of severity: the state of a slot is the worst state of its jobs.
_WORST = ("failed", "missing", "done", "not due")


@dataclass(frozen=True, slots=True)
class States:
    """States and reasons, each of shape (rows,), in the order of ``facts.seen``: a row per market and slot."""

    state: np.ndarray
    reason: np.ndarray


def _first_case(cases: Sequence[tuple[Any, str, Any]], otherwise: tuple[str, Any]) -> States:
    """Return state and reason of each row by the first case that holds: its condition, state and reason."""
    holds, states, reasons = (list(part) for part in zip(*cases, strict=True))
    state, reason = np.select(holds, states, otherwise[0]), np.select(holds, reasons, otherwise[1])
    return States(state.astype(object), reason.astype(object))


def span_text(span: pd.Timedelta) -> str:
    """Format a duration.

    >>> span_text(pd.Timedelta(minutes=95)), span_text(pd.Timedelta(days=3)), span_text(pd.Timedelta(seconds=40))
    ('95 min', '3 d', '40 s')
    """
    seconds = span.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * size or (seconds and seconds % size == 0):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _runs_at(facts: Facts, stage: str, slots: pd.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return status and reason of a stage from the ledger in each slot, "" where the ledger has no entry."""
    runs = facts.runs[facts.runs["stage"] == stage].set_index("slot").reindex(slots).astype(object).fillna("")
    return runs["status"].to_numpy(dtype=object), runs["reason"].to_numpy(dtype=object)


def _left_out(facts: Facts, kind: str, places: pd.MultiIndex, stages: Sequence[str] = STAGES) -> np.ndarray:
    """Return why runs left out each of some (subject, slot), subjects of a ``kind`` market or job; "" where they did not."""
    rows = facts.runs.loc[facts.runs["stage"].isin(stages), ["slot", "left_out"]].explode("left_out").dropna()
    rows["subject"] = rows["left_out"].astype(str).str.extract(f"^{kind} (.+?) is left out", expand=False)
    rows = rows.dropna(subset="subject").drop_duplicates(["slot", "subject"], keep="last")
    sentences = rows.set_index(["subject", "slot"])["left_out"].reindex(places)
    return sentences.astype(object).fillna("").to_numpy(dtype=object)


def staleness(facts: Facts) -> np.ndarray:
    """Return why the newest observation of each row is too old (M1.3), "" if it is recent enough, shape (rows,)."""
    seen = facts.seen.reset_index(drop=True)
    out = np.full(len(seen), "", dtype=object)
    limits = {(promise.market, promise.source, promise.kind): promise for promise in facts.promises}
    for (market, source), own in seen.groupby(["market", "source"], sort=False):
        count, price = (limits.get((str(market), str(source), kind)) for kind in ("count", "price"))
        # A price read at every probe is too old only if the count is, which is stated then.
        as_fresh_as_counts = count is not None and price is not None and price.probed
        for promise in (None if as_fresh_as_counts else price, count):
            if promise is None or promise.constant:
                continue
            age, limit = own["slot"] - own[f"{promise.kind}_at"], span_text(promise.max_age)
            old = age[age > promise.max_age]
            out[old.index.to_numpy()] = [
                f"the newest {promise.kind} was {span_text(length)} old, at most {limit} expected"
                for length in old
            ]
    return out


def _unseen_markets(facts: Facts) -> np.ndarray:
    return (facts.seen["count_at"].isna() & facts.seen["price_at"].isna()).to_numpy(dtype=bool)


def ingest_states(facts: Facts) -> States:
    """Return whether the observations that a slot needs existed at its start; the reasons come from the ledger."""
    (status, failure), stale = _runs_at(facts, "ingest", facts.seen["slot"]), staleness(facts)
    stored = np.where(status == "", "no ingest ran in this slot, but its observations are stored", "")
    return _first_case(
        [
            (_unseen_markets(facts), "not due", "no observation was known yet"),
            (status == "failed", "failed", failure),
            (stale == "", "done", stored),
            (status == "done", "stale", stale),
        ],
        ("missing", "no ingest ran in this slot, and " + stale),
    )


def forecast_states(facts: Facts) -> States:
    """Return whether the planner's forecast was issued, on what data, and whether a simpler model computed it."""
    (status, failure), stale = _runs_at(facts, "forecast", facts.seen["slot"]), staleness(facts)
    keys = ["market", "source", "slot"]
    own = facts.seen[keys].merge(facts.issued, on=keys, how="left")
    planned = own["planned"].fillna(False).to_numpy(dtype=bool)
    gap = planned & ((stale != "") | (own["newest_row"] < own["slot"]).to_numpy(dtype=bool))
    fell = planned & (own[["price_fallback", "count_fallback"]].fillna("") != "").any(axis=1).to_numpy(
        dtype=bool
    )
    places = pd.MultiIndex.from_arrays([own["market"] + "@" + own["source"], own["slot"]])
    left = _left_out(facts, "market", places, ["forecast"])
    found = _first_case(
        [
            (gap, "stale", ""),
            (fell, "fallback", ""),
            (planned, "done", ""),
            (_unseen_markets(facts), "not due", "no observation was known yet"),
            (status == "failed", "failed", failure),
            (left != "", "failed", left),
            ((status == "done") & (stale != ""), "stale", stale),
            (status == "done", "not due", "the turn did not follow this market"),
        ],
        ("missing", f"no turn issued a forecast of {facts.planner} in this slot"),
    )
    notable = (
        gap | fell | (planned & (own["backfilled"].eq(True) | own["others_fell_back"].fillna("").ne("")))
    )
    for place, row in zip(np.flatnonzero(notable), rows_of(own[notable]), strict=True):
        found.reason[place] = _forecast_text(
            row, facts.planner, stale[place] or ("gap" if gap[place] else "")
        )
    return found


def _forecast_text(row: dict[str, object], planner: str, stale: str) -> str:
    """Describe everything unusual about an existing forecast."""
    parts = []
    if stale == "gap":
        parts.append(f"the newest known value was of {row['newest_row']:%Y-%m-%d %H:%M}")
    elif stale:
        parts.append(stale)
    for variable in ("price", "count"):
        if row[f"{variable}_fallback"]:
            parts.append(f"{variable}: a simpler model replaced {planner}: {row[f'{variable}_fallback']}")
    if row["others_fell_back"]:
        parts.append(f"also replaced by simpler models: {row['others_fell_back']}")
    if row["backfilled"]:
        parts.append("run afterwards")
    return "; ".join(parts)


def allocate_states(facts: Facts) -> States:
    """Return whether every job running on a market has a decision."""
    window = facts.window
    running = [
        pd.date_range(
            max(job["start"], job["created"].floor(window.step), window.first),
            min(job["deadline"] - window.step, window.last),
            freq=window.step,
        )
        for job in rows_of(facts.jobs)
    ]
    jobs = (
        facts.jobs.assign(slot=pd.Series(running, index=facts.jobs.index, dtype=object))
        .explode("slot")
        .dropna(subset="slot")
    )
    slots, left = _place_jobs(facts, jobs)
    status, failure = _runs_at(facts, "allocate", slots["slot"])
    names = slots["name"].to_numpy(dtype=object)
    decided = pd.MultiIndex.from_frame(facts.decided[["job", "slot"]])
    over = (slots["slot"] >= slots["finished"]).to_numpy(dtype=bool)
    found = _first_case(
        [
            (pd.MultiIndex.from_frame(slots[["name", "slot"]]).isin(decided), "done", ""),
            (status == "failed", "failed", failure),
            (left != "", "failed", left),
            (over | (status == "done"), "not due", names + " had finished"),
        ],
        ("missing", "no decision for " + names),
    )
    return _by_market(facts, slots, found, "no job was running")


def score_states(facts: Facts) -> States:
    """Return whether every ended job was scored, in the slot that starts at its deadline (a later turn may have scored it)."""
    window = facts.window
    jobs = facts.jobs[facts.jobs["replayed"].astype(bool)]
    due = np.maximum(jobs["deadline"], jobs["created"].dt.ceil(window.step))
    slots, left = _place_jobs(facts, jobs.assign(slot=due)[(due >= window.first) & (due <= window.last)])
    status, failure = _runs_at(facts, "score", slots["slot"])
    names = slots["name"].to_numpy(dtype=object)
    found = _first_case(
        [
            ((slots["scored"] > slots["slot"]).to_numpy(dtype=bool), "done", names + " was scored later"),
            (slots["scored"].notna().to_numpy(dtype=bool), "done", ""),
            (status == "failed", "failed", failure),
            (left != "", "failed", left),
        ],
        ("missing", names + " ended and is not scored"),
    )
    return _by_market(facts, slots, found, "no job had ended")


def _place_jobs(facts: Facts, jobs: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray]:
    """Return jobs by slot with the market and source of their last decision, else where they begin, and why a run left them out.

    The rows are sorted by slot, those of a slot as in ``jobs``.
    """
    jobs = jobs.astype({"slot": _US, "name": object}).sort_values("slot", kind="stable")
    decided = facts.decided[facts.decided["source"] != ""].rename(columns={"job": "name"})
    decided = decided.astype({"slot": _US, "name": object}).sort_values("slot")
    slots = pd.merge_asof(jobs, decided, on="slot", by="name", suffixes=("_first", ""))
    for name in ("market", "source"):
        slots[name] = slots[name].fillna(slots[f"{name}_first"])
    return slots, _left_out(facts, "job", pd.MultiIndex.from_frame(slots[["name", "slot"]]))


def _by_market(facts: Facts, slots: pd.DataFrame, found: States, nothing: str) -> States:
    """Return the state of each market and slot: the worst state of its jobs, with the reasons of those jobs."""
    keys = ["market", "source", "slot"]
    jobs = slots[keys].assign(state=found.state, reason=found.reason)
    jobs["rank"] = jobs["state"].map({name: k for k, name in enumerate(_WORST)})
    jobs = jobs[jobs["rank"] == jobs.groupby(keys)["rank"].transform("min")]
    merged = jobs.groupby(keys, sort=False).agg(
        state=("state", "first"), reason=("reason", lambda texts: _joined_reasons(list(texts)))
    )
    own = merged.reindex(pd.MultiIndex.from_frame(facts.seen[keys]))
    state, reason = own["state"].fillna("not due"), own["reason"].fillna(nothing)
    return States(state.to_numpy(dtype=object), reason.to_numpy(dtype=object))


def _joined_reasons(texts: list[str]) -> str:
    """Join a few distinct reasons."""
    return "; ".join(first_of(filter(None, dict.fromkeys(texts)), _MOST_NAMED, "and {} more"))


#: States in display order; the first three need no attention.
STATES: Final = ("done", "fallback", "not due", "stale", "failed", "missing")
#: States in which due work was not done.
NOT_DONE: Final = ("failed", "missing")
COLUMNS: Final = ("market", "source", "stage", "slot", "state", "reason")
DEFAULT_SPAN: Final = pd.Timedelta(days=3)  # Default length of a map


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """The completeness map: ``frame`` has `COLUMNS`, a row per market, source, stage and slot,
    sorted by these; slots are UTC.

    ``start`` and ``end`` are the first and the last slot, ``at`` is the time as of which the map is computed.
    """

    at: pd.Timestamp
    start: pd.Timestamp
    end: pd.Timestamp
    step: pd.Timedelta
    frame: pd.DataFrame

    def summary(self) -> pd.DataFrame:
        """Return a row per market, source and stage: slots in each of `STATES`, and ``complete``,
        the share of due slots that are done.

        Slots with a fallback count as done, stale slots do not; ``complete`` is NaN if nothing was due.
        """
        keys = ["market", "source", "stage"]
        counts = self.frame.groupby([*keys, "state"], sort=False).size().unstack("state", fill_value=0)
        counts = counts.reindex(columns=list(STATES), fill_value=0)
        due = counts.sum(axis=1) - counts["not due"]
        counts["complete"] = (counts["done"] + counts["fallback"]) / due.where(due > 0)
        counts.columns.name = None
        return counts.reset_index()

    def stretches(self, states: tuple[str, ...] = ("failed", "missing", "stale", "fallback")) -> pd.DataFrame:
        """Return runs of consecutive slots in the same state: market, source, stage, state, since,
        until, slots, reason.

        ``until`` is the start of the last slot; the reason is that of the last slot, which is the
        most recent.
        """
        frame = self.frame
        change = frame[["market", "source", "stage", "state"]].ne(
            frame[["market", "source", "stage", "state"]].shift()
        )
        run = change.any(axis=1).cumsum()
        kept = frame["state"].isin(states)
        grouped = frame[kept].groupby(run[kept], sort=False)
        return grouped.agg(
            market=("market", "first"),
            source=("source", "first"),
            stage=("stage", "first"),
            state=("state", "first"),
            since=("slot", "first"),
            until=("slot", "last"),
            slots=("slot", "size"),
            reason=("reason", "last"),
        ).reset_index(drop=True)

    def count(self, *states: str) -> int:
        """Return the number of slots in any of these states."""
        return int(self.frame["state"].isin(states).sum())


MOST_SLOTS = 20_000  # Maximum number of slots of a map: more than a year of half hours


def window_of(
    store: Store,
    settings: Settings,
    *,
    start: pd.Timestamp | None,
    end: pd.Timestamp | None,
    at: pd.Timestamp,
) -> SlotMap:
    """Return the slots of a map from ``start`` to ``end``, as known at ``at``.

    ``end`` is at most ``at``, which is the default. Without ``start`` the map begins `DEFAULT_SPAN` earlier, but not before
    the first turn in the ledger; with ``start`` every slot from there is due. Raises `SettingsError` if there is no slot or
    too many.
    """
    step = step_of(settings)
    last = min(at if end is None else end, at).floor(step)
    if start is None:
        start = last - DEFAULT_SPAN
        (first_turn,) = store.execute("SELECT epoch_us(min(logical_at)) FROM runs")[0]
        if first_turn is not None:
            start = max(start, min(pd.Timestamp(first_turn, unit="us", tz="UTC"), last))
    first = start.ceil(step)
    if first > last:
        raise SettingsError(
            f"no slot from {start} to {last}", expected="--since before --until and before --at"
        )
    if (slots := (last - first) // step + 1) > MOST_SLOTS:
        raise SettingsError(
            f"{slots:,} slots from {start} to {last}",
            expected=f"at most {MOST_SLOTS:,}",
            remedy="give a later --since",
        )
    return SlotMap(first=first, last=last, step=step, at=at)


def classify(facts: Facts, settings: Settings) -> Completeness:
    """Compute the map from its facts, without storage or clock."""
    window = facts.window
    young = window.at - pd.Timedelta(minutes=settings.alarms.grace_minutes)
    stages = {
        "ingest": ingest_states(facts),
        "forecast": forecast_states(facts),
        "allocate": allocate_states(facts),
        "score": score_states(facts),
    }
    parts = []
    for stage in STAGES:
        own = facts.seen[["market", "source", "slot"]].assign(stage=stage)
        own["state"], own["reason"] = stages[stage].state, stages[stage].reason
        parts.append(own)
    frame = pd.concat(parts, ignore_index=True)
    waiting = (frame["state"] == "missing") & (frame["slot"] > young)
    frame.loc[waiting, "state"] = "not due"
    frame.loc[waiting, "reason"] = (
        f"due by {settings.alarms.grace_minutes:g} minutes after the start of the slot"
    )
    frame["place"] = frame["stage"].map(STAGES.index)
    frame = frame.sort_values(["market", "source", "place", "slot"], ignore_index=True)
    return Completeness(
        at=window.at, start=window.first, end=window.last, step=window.step, frame=frame[list(COLUMNS)]
    )
