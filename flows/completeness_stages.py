"""The state of each stage in every market and slot, as pure functions over frames.

Each function answers with arrays in the order of ``facts.seen``: one row a market and slot.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from flows.completeness_facts import Facts
from flows.frames import rows_of
from flows.freshness import Promise

#: How many jobs a reason names.
_NAMED = 3
#: The worst of several jobs' states is the slot's.
_WORST = ("failed", "missing", "done", "not due")


@dataclass(frozen=True, slots=True)
class States:
    """States and reasons, each of shape (rows,)."""

    state: np.ndarray
    reason: np.ndarray


def told_span(span: pd.Timedelta) -> str:
    """A duration in words.

    >>> told_span(pd.Timedelta(minutes=95)), told_span(pd.Timedelta(days=3)), told_span(pd.Timedelta(seconds=40))
    ('95 min', '3 d', '40 s')
    """
    seconds = span.total_seconds()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if abs(seconds) >= 2 * size or (seconds and seconds % size == 0):
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _stage_runs(facts: Facts, stage: str) -> pd.DataFrame:
    """What the ledger says of a stage, a row for every row of the map; empty text where it says nothing."""
    runs = facts.runs[facts.runs["stage"] == stage].set_index("slot")
    own = runs.reindex(facts.seen["slot"])
    return own[["status", "reason"]].fillna("").reset_index(drop=True)


def staleness(facts: Facts) -> np.ndarray:
    """Why the newest observation behind each row is too old (M1.3), "" where it is young enough, shape (rows,)."""
    seen = facts.seen.reset_index(drop=True)
    out = np.full(len(seen), "", dtype=object)
    limits = {(one.market, one.source, one.kind): one for one in facts.promises}
    for (market, source), own in seen.groupby(["market", "source"], sort=False):
        rows = own.index.to_numpy()
        count, price = (limits.get((str(market), str(source), kind)) for kind in ("count", "price"))
        count_old, price_old = _old(own, "count_at", count), _old(own, "price_at", price)
        if price is not None and price.probed and count is not None:
            price_old = price_old & count_old
        for name, old, promise in (
            ("count_at", count_old, count),
            ("price_at", price_old & ~count_old, price),
        ):
            for place in np.flatnonzero(old):
                out[rows[place]] = _told_age(own["slot"].iloc[place], own[name].iloc[place], promise)
    return out


def _old(own: pd.DataFrame, name: str, promise: Promise | None) -> np.ndarray:
    if promise is None or promise.constant:
        return np.zeros(len(own), dtype=bool)
    return ((own["slot"] - own[name]) > promise.max_age).to_numpy(dtype=bool)


def _told_age(slot: pd.Timestamp, seen: pd.Timestamp, promise: Promise | None) -> str:
    kind, limit = (
        ("value", "")
        if promise is None
        else (promise.kind, f", at most {told_span(promise.max_age)} expected")
    )
    return f"the newest {kind} was {told_span(slot - seen)} old{limit}"


def _unseen(facts: Facts) -> np.ndarray:
    return (facts.seen["count_at"].isna() & facts.seen["price_at"].isna()).to_numpy(dtype=bool)


def ingest_states(facts: Facts) -> States:
    """Whether the observations that a slot needs were there at its start; the ledger says why not."""
    run, stale = _stage_runs(facts, "ingest"), staleness(facts)
    status, old = run["status"].to_numpy(dtype=object), stale != ""
    state = np.select(
        [_unseen(facts), status == "failed", ~old, status == "done"],
        ["not due", "failed", "done", "stale"],
        "missing",
    ).astype(object)
    none_ran = np.where(status == "", "no ingest ran in this slot", "")
    reason = np.select(
        [state == "not due", state == "failed", state == "done", state == "stale"],
        ["nothing was known of it yet", run["reason"].to_numpy(dtype=object), none_ran, stale],
        "no ingest ran in this slot, and " + stale,
    ).astype(object)
    reason[(state == "done") & (none_ran != "")] = (
        "no ingest ran in this slot, but its observations are there"
    )
    return States(state, reason)


def forecast_states(facts: Facts) -> States:
    """Whether the planner's forecast was issued, what it knew, and whether a simpler model answered."""
    run, stale = _stage_runs(facts, "forecast"), staleness(facts)
    keys = ["market", "source", "slot"]
    own = facts.seen[keys].merge(facts.issued, on=keys, how="left")
    planned = own["planned"].fillna(False).to_numpy(dtype=bool)
    gap = planned & ((stale != "") | (own["newest_row"] < own["slot"]).to_numpy(dtype=bool))
    fell = planned & (own[["price_fallback", "count_fallback"]].fillna("") != "").any(axis=1).to_numpy(
        dtype=bool
    )
    left = _left_out(facts, "forecast")
    status = run["status"].to_numpy(dtype=object)
    state = np.select(
        [
            gap,
            fell,
            planned,
            _unseen(facts),
            status == "failed",
            left != "",
            (status == "done") & (stale != ""),
        ],
        ["stale", "fallback", "done", "not due", "failed", "failed", "stale"],
        np.where(status == "done", "not due", "missing"),
    ).astype(object)
    reason = np.full(len(own), "", dtype=object)
    notable = (
        gap | fell | (planned & (own["backfilled"].eq(True) | own["others_fell_back"].fillna("").ne("")))
    )
    for place, row in zip(np.flatnonzero(notable), rows_of(own[notable]), strict=True):
        reason[place] = _told_forecast(row, facts.planner, stale[place] or ("gap" if gap[place] else ""))
    lacking = ~planned
    reason[lacking] = np.select(
        [
            _unseen(facts),
            status == "failed",
            left != "",
            (status == "done") & (stale != ""),
            status == "done",
        ],
        [
            "nothing was known of it yet",
            run["reason"].to_numpy(dtype=object),
            left,
            stale,
            "that turn did not follow it",
        ],
        f"no turn made a forecast of {facts.planner} in this slot",
    )[lacking]
    return States(state, reason)


def _told_forecast(row: dict[str, object], planner: str, stale: str) -> str:
    """Everything noteworthy about a forecast that is there."""
    parts = []
    if stale == "gap":
        parts.append(f"the newest value known was of {row['newest_row']:%Y-%m-%d %H:%M}")
    elif stale:
        parts.append(stale)
    for variable in ("price", "count"):
        if row[f"{variable}_fallback"]:
            parts.append(
                f"{variable}: {planner} had to answer with a simpler model: {row[f'{variable}_fallback']}"
            )
    if row["others_fell_back"]:
        parts.append(f"fell back too: {row['others_fell_back']}")
    if row["backfilled"]:
        parts.append("made afterwards")
    return "; ".join(parts)


def _left_out(facts: Facts, stage: str) -> np.ndarray:
    """The sentence in which a run says that it left a market out, by row; "" where it did not."""
    out = np.full(len(facts.seen), "", dtype=object)
    told = facts.runs[(facts.runs["stage"] == stage) & facts.runs["left_out"].astype(bool)]
    if told.empty:
        return out
    keys = facts.seen[["market", "source", "slot"]].itertuples(index=False, name=None)
    places = {key: place for place, key in enumerate(keys)}
    for row in rows_of(told):
        for sentence in row["left_out"]:
            key = re.match(r"market (.+?)@(.+?) is left out", sentence)
            place = None if key is None else places.get((key[1], key[2], row["slot"]))
            if place is not None:
                out[place] = sentence
    return out


def allocate_states(facts: Facts) -> States:
    """Whether every job that was running on a market was decided."""
    jobs = facts.jobs[facts.jobs["origin"] != "practice"]
    tables = [_slots_of(job, facts) for job in rows_of(jobs)]
    return _by_market(facts, tables, "no job was running")


def _slots_of(job: dict[str, pd.Timestamp], facts: Facts) -> pd.DataFrame:
    """A job's running slots in the window with what became of each."""
    window = facts.window
    begin = max(job["start"], job["created"].floor(window.step), window.first)
    slots = pd.date_range(begin, min(job["deadline"] - window.step, window.last), freq=window.step, unit="us")
    decided = facts.decided.loc[facts.decided["job"] == job["name"], "slot"]
    there = slots.isin(decided)
    runs = _runs_at(facts, "allocate", slots)
    done, failed = runs["status"].to_numpy() == "done", runs["status"].to_numpy() == "failed"
    left = _job_left_out(facts, str(job["name"]), slots)
    over = (slots >= job["finished"]) if pd.notna(job["finished"]) else np.zeros(len(slots), dtype=bool)
    state = np.select(
        [there, failed, left != "", over | done], ["done", "failed", "failed", "not due"], "missing"
    )
    reason = np.select(
        [there, failed, left != "", over | done],
        ["", runs["reason"].to_numpy(dtype=object), left, f"{job['name']} had finished"],
        f"no decision for {job['name']}",
    )
    return pd.DataFrame(
        {"market": job["market"], "source": job["source"], "slot": slots, "state": state, "reason": reason}
    )


def _runs_at(facts: Facts, stage: str, slots: pd.DatetimeIndex) -> pd.DataFrame:
    runs = facts.runs[facts.runs["stage"] == stage].set_index("slot")
    return runs.reindex(slots)[["status", "reason"]].fillna("")


def _job_left_out(facts: Facts, name: str, slots: pd.DatetimeIndex) -> np.ndarray:
    out = np.full(len(slots), "", dtype=object)
    told = facts.runs[facts.runs["left_out"].astype(bool)]
    for row in rows_of(told):
        for sentence in row["left_out"]:
            if sentence.startswith(f"job {name} is left out"):
                out[slots == row["slot"]] = sentence
    return out


def score_states(facts: Facts) -> States:
    """Whether every job that ended was scored, in the slot that starts at its deadline (a later turn may have done it)."""
    window = facts.window
    jobs = facts.jobs[facts.jobs["resumable"].astype(bool)]
    due = np.maximum(jobs["deadline"], jobs["created"].dt.ceil(window.step))
    jobs = jobs.assign(slot=due)[(due >= window.first) & (due <= window.last)]
    if jobs.empty:
        return _by_market(facts, [], "no job had ended")
    slots = pd.DatetimeIndex(jobs["slot"])
    runs = _runs_at(facts, "score", slots)
    scored = jobs["scored"].notna().to_numpy(dtype=bool)
    late = scored & (jobs["scored"] > jobs["slot"]).to_numpy(dtype=bool)
    failed = runs["status"].to_numpy() == "failed"
    left = np.array(
        [_job_left_out(facts, str(row["name"]), pd.DatetimeIndex([row["slot"]]))[0] for row in rows_of(jobs)],
        dtype=object,
    )
    names = jobs["name"].to_numpy(dtype=object)
    state = np.select([scored, failed, left != ""], ["done", "failed", "failed"], "missing")
    reason = np.select(
        [late, scored, failed, left != ""],
        [names + " was scored later", "", runs["reason"].to_numpy(dtype=object), left],
        names + " ended and is not scored",
    )
    table = jobs[["market", "source", "slot"]].assign(state=state, reason=reason)
    return _by_market(facts, [table], "no job had ended")


def _by_market(facts: Facts, tables: list[pd.DataFrame], nothing: str) -> States:
    """One state a market and slot from the states of its jobs: the worst, with the reasons of those."""
    state = np.full(len(facts.seen), "not due", dtype=object)
    reason = np.full(len(facts.seen), nothing, dtype=object)
    tables = [table for table in tables if len(table)]
    if not tables:
        return States(state, reason)
    rank = {name: k for k, name in enumerate(_WORST)}
    keys = ["market", "source", "slot"]
    jobs = pd.concat(tables, ignore_index=True)
    jobs["rank"] = jobs["state"].map(rank)
    jobs = jobs[jobs["rank"] == jobs.groupby(keys)["rank"].transform("min")]
    merged = jobs.groupby(keys, sort=False).agg(
        state=("state", "first"), reason=("reason", lambda texts: _joined(list(texts)))
    )
    index = pd.MultiIndex.from_frame(facts.seen[keys])
    places = index.get_indexer(merged.index)
    known = places >= 0
    state[places[known]] = merged["state"].to_numpy(dtype=object)[known]
    reason[places[known]] = merged["reason"].to_numpy(dtype=object)[known]
    return States(state, reason)


def _joined(texts: list[str]) -> str:
    """A few reasons in one, each once."""
    own = [text for text in dict.fromkeys(texts) if text]
    rest = len(own) - _NAMED
    return "; ".join(own[:_NAMED]) + (f"; and {rest} more" if rest > 0 else "")
