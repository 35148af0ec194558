"""Jobs, decisions, outcomes and weights as the warehouse keeps them, read back as values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan
from typing import Any

import numpy as np
import pandas as pd

from flows.turn.context import Turn
from flows.turn.markets import Followed
from flows.turn.score import Scored, outcome_rows
from forecasting.quantiles import Forecast
from optimization.job.request import JobRequest, first_slot
from optimization.selection.contract import Learner, weigh
from optimization.selection.weights import Weights
from optimization.window.plan import Allocation
from warehouse.errors import JobError
from warehouse.issued.records import read_rows, write_rows
from warehouse.issued.vintages import read_forecasts
from warehouse.store.connection import Store
from warehouse.times import utc_index


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A placed request as kept: ``origin`` is "user", "example" or "practice"; it was added at ``created_at``.

    ``start`` is the start of the job's first slot, ``deadline`` the end of the last whole slot before its deadline.
    """

    request: JobRequest
    origin: str
    step: pd.Timedelta
    created_at: pd.Timestamp
    # Kept, not asked for each time: every turn sorts all jobs there ever were.
    start: pd.Timestamp = field(init=False)
    deadline: pd.Timestamp = field(init=False)

    def __post_init__(self) -> None:
        """Raise `JobError` if the request is not placed."""
        object.__setattr__(self, "start", first_slot(self.request, self.step))
        object.__setattr__(self, "deadline", self.request.ends.floor(self.step))


def save_jobs(
    store: Store, requests: Iterable[JobRequest], *, origin: str, at: pd.Timestamp, step: pd.Timedelta
) -> int:
    """Keep placed requests; the same again adds nothing. Raises `JobError` if a name is taken by another job."""
    requests = list(requests)
    if not requests:
        return 0
    known = {job.request.name: job for job in stored_jobs(store)}
    rows = []
    for request in requests:
        before = known.get(request.name)
        if before is not None and before.request != request:
            raise JobError(
                f"job {request.name!r} is known with other terms",
                remedy="give it another name with --name, or another deadline in its file",
            )
        rows.append(
            {
                "name": request.name,
                "market": request.market,
                "source": request.source or "",
                "spec": request.model_dump_json(),
                "origin": origin,
                "created_at": at,
                "start_at": first_slot(request, step),
                "deadline_at": request.ends,
                "step_seconds": int(step / pd.Timedelta(seconds=1)),
            }
        )
    return write_rows(store, "jobs", pd.DataFrame(rows)).added if rows else 0


def stored_jobs(store: Store) -> list[StoredJob]:
    """Every job, by start and name."""
    rows = store.execute("SELECT spec, origin, step_seconds, epoch_us(created_at) FROM jobs")
    return list(_in_order(tuple(rows)))


@lru_cache(maxsize=2)
def _in_order(rows: tuple[tuple[str, str, int, int], ...]) -> tuple[StoredJob, ...]:
    """Jobs by start and name: every turn asks, and seldom is there a new one."""
    jobs = [_stored_job(*row) for row in rows]
    return tuple(sorted(jobs, key=lambda job: (job.start, job.request.name)))


@lru_cache(maxsize=16_384)
def _stored_job(spec: str, origin: str, step_seconds: int, created_us: int) -> StoredJob:
    """A job as it is stored; it never changes, and every turn reads all of them."""
    return StoredJob(
        request=JobRequest.model_validate_json(spec),
        origin=origin,
        step=pd.Timedelta(seconds=int(step_seconds)),
        created_at=utc_index(np.array([created_us], dtype=np.int64))[0],
    )


def find_job(store: Store, name: str) -> StoredJob:
    """The job of that name; raises `JobError` with the known names."""
    jobs = stored_jobs(store)
    for job in jobs:
        if job.request.name == name:
            return job
    names = ", ".join(job.request.name for job in jobs[:5]) or "none"
    raise JobError(
        f"no job {name!r} in the warehouse", expected=f"a known job ({names})", remedy="`slackwater job list`"
    )


def save_decisions(store: Store, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Keep decisions, each with its run; one that was issued for a job and slot before stands and is not changed."""
    if not rows:
        return
    frame = pd.DataFrame(
        [
            {
                "job": row["job"],
                "slot": pd.Timestamp(row["slot"]),
                "run": run,
                "policy": row["policy"],
                "on_demand": row["on_demand"],
                "spot": row["spot"],
                "reason": row["reason"],
                "details": json.dumps(row),
            }
            for run, row in rows
        ]
    )
    write_rows(store, "decisions", frame)


def decisions_of(store: Store, job: str) -> list[dict[str, Any]]:
    """Every decision made for a job, by slot, as plain values."""
    rows = read_rows(store, "decisions", where={"job": job})
    return sorted((json.loads(text) for text in rows["details"]), key=lambda row: str(row["slot"]))


def allocations_of(decisions: Iterable[Mapping[str, Any]]) -> dict[pd.Timestamp, Allocation]:
    """What was decided, by slot."""
    return {
        pd.Timestamp(row["slot"]): Allocation(int(row["on_demand"]), int(row["spot"])) for row in decisions
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """What the selection learned: one round a job, in order. ``utilities`` has shape (rounds, policies), in [0, 1]."""

    jobs: tuple[str, ...]
    at: tuple[pd.Timestamp, ...]
    names: tuple[str, ...]
    utilities: np.ndarray

    def weights(self, learner: Learner[Any]) -> list[Weights]:
        """The weights before each round and after the last, rebuilt from the utilities (M5.3)."""
        return weigh(learner, self.names, self.utilities)

    def newest(self, learner: Learner[Any]) -> Weights:
        """The last of `weights`."""
        return weigh(learner, self.names, self.utilities, after=len(self.jobs))[-1]

    def before(self, at: pd.Timestamp) -> Rounds:
        """The rounds learned before ``at``; the first turn's own rounds if there are none before it (decision 3)."""
        cut = [i for i, when in enumerate(self.at) if when < at] or [
            i for i, when in enumerate(self.at) if when <= at
        ]
        return Rounds(
            jobs=tuple(self.jobs[i] for i in cut),
            at=tuple(self.at[i] for i in cut),
            names=self.names,
            utilities=self.utilities[cut],
        )


def stored_rounds(store: Store, names: Sequence[str]) -> Rounds:
    """The rounds stored for exactly these policies; rounds of another pool are left out (their regret is another game)."""
    # One pass over columns: a year of rounds is a quarter of a million rows, and every turn asks.
    columns = store.arrays(
        "SELECT round, list(policy ORDER BY policy) AS policies, list(utility ORDER BY policy) AS utilities, "
        "any_value(job) AS job, epoch_us(any_value(scored_at)) AS scored_us FROM weights GROUP BY round ORDER BY round"
    )
    order = sorted(names)
    mine = [i for i, policies in enumerate(columns["policies"]) if list(policies) == order]
    place = [order.index(name) for name in names]
    table = np.array([columns["utilities"][i] for i in mine], dtype=float).reshape(len(mine), len(order))
    return Rounds(
        jobs=tuple(str(columns["job"][i]) for i in mine),
        at=tuple(utc_index(np.asarray(columns["scored_us"], dtype=np.int64)[mine])),
        names=tuple(names),
        utilities=np.ascontiguousarray(table[:, place]),
    )


def save_scored(
    store: Store,
    turns: Sequence[tuple[pd.Timestamp, Sequence[Scored]]],
    *,
    names: Sequence[str],
    learner: Learner[Any],
) -> None:
    """Keep the outcomes of jobs by the turn that scores them and add a round for each job, in the order given; all or nothing.

    The weights kept are those that ``learner`` makes of every round so far, whoever made those kept before.
    """
    scored = [(at, one) for at, own in turns for one in own]
    if not scored:
        return
    rounds = stored_rounds(store, names)
    first = _next_round(store)
    utilities = np.vstack([rounds.utilities, [[row.normalised for row in one.ledger] for _, one in scored]])
    history = weigh(learner, names, utilities, after=len(rounds.jobs) + 1)
    weights = [
        pd.DataFrame(
            {
                "round": first + k,
                "job": one.ended.job.name,
                "policy": list(names),
                "scored_at": at,
                "utility": [row.normalised for row in one.ledger],
                "log_weight": after.log_weight,
            }
        )
        for k, ((at, one), after) in enumerate(zip(scored, history, strict=True))
    ]
    with store.transaction():
        write_rows(
            store, "outcomes", pd.DataFrame([row for at, one in scored for row in outcome_rows(one, at=at)])
        )
        write_rows(store, "weights", pd.concat(weights, ignore_index=True))


def _next_round(store: Store) -> int:
    ((newest,),) = store.execute("SELECT max(round) FROM weights")
    return 1 if newest is None else int(newest) + 1


def outcome_frame(store: Store, names: Sequence[str]) -> pd.DataFrame:
    """Outcomes of these policies in the columns that `optimization.replay.ledger.leaderboard` reads.

    With them ``lost_to_forecast_error`` (units of OD-only cost), NaN where no forecast was issued or it was not measured.
    """
    rows = read_rows(store, "outcomes")
    rows = rows[rows["policy"].isin(list(names))]
    details = [json.loads(text) for text in rows["details"]]
    return pd.DataFrame(
        {
            "job": rows["job"].to_numpy(),
            "policy": rows["policy"].to_numpy(),
            "utility": [detail["utility"] for detail in details],
            "utility_usd": rows["utility_usd"].to_numpy(dtype=float),
            "cost_usd": rows["cost_usd"].to_numpy(dtype=float),
            "on_time": rows["on_time"].to_numpy(dtype=bool),
            "gap_to_hindsight": [detail["gap_to_hindsight"] for detail in details],
            "lost_to_forecast_error": [
                np.nan
                if detail.get("lost_to_forecast_error_usd") is None
                else detail["lost_to_forecast_error_usd"] / detail["on_demand_only_usd"]
                for detail in details
            ],
        }
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


#: Columns of the errors that the warehouse keeps apart; the rest goes into "more" as JSON.
ACCURACY_COLUMNS = (
    "market", "source", "model", "variable", "step", "n", "mae", "rmse", "mase", "pinball", "skill_mae",
    "skill_pinball", "coverage_80", "width_80", "brier", "absent", "unpredicted", "fallback_share",
)  # fmt: skip


#: Times whose errors are written together: of a long stretch all at once would be held several times over.
_TIMES_A_WRITE = 12


def save_accuracy(store: Store, measured: Sequence[tuple[pd.Timestamp, pd.DataFrame]]) -> None:
    """Keep the errors measured at each of some times; all or nothing."""
    tables = [(at, accuracy) for at, accuracy in measured if len(accuracy)]
    with store.transaction():
        for i in range(0, len(tables), _TIMES_A_WRITE):
            own = tables[i : i + _TIMES_A_WRITE]
            table = pd.concat([accuracy.assign(measured_at=at) for at, accuracy in own], ignore_index=True)
            kept = table[[*ACCURACY_COLUMNS, "measured_at"]]
            write_rows(store, "accuracy", kept.assign(more=_as_json(table.drop(columns=list(kept.columns)))))


def measured_errors(store: Store, at: pd.Timestamp | None) -> pd.DataFrame:
    """The errors measured at a time as they were kept, with the ``scale`` that pooling needs (NaN where none was kept)."""
    table = read_rows(store, "accuracy", where={"measured_at": at})
    scales = [json.loads(text).get("scale") for text in table["more"]]
    return table.drop(columns=["more"]).assign(scale=pd.Series(scales, index=table.index, dtype=float))


def _as_json(table: pd.DataFrame) -> list[str]:
    """Each row of a table of numbers as `json.dumps` writes it, with null for NaN."""
    form = "{" + ", ".join(f"{json.dumps(str(name))}: %s" for name in table.columns) + "}"
    written = [
        ["null" if isnan(value) else repr(value) for value in table[name].to_numpy(dtype=float).tolist()]
        for name in table.columns
    ]
    return [form % row for row in zip(*written, strict=True)]


# ---
# The planner's forecasts in a job's slots, as they were issued (M6.1).


def planned_forecasts(turn: Turn, followed: Followed, job: StoredJob) -> list[Forecast]:
    """The planner's vintages in a job's slots up to the turn's time, ascending."""
    end = min(job.deadline, followed.at)
    return stored_forecasts(
        turn.store, followed, turn.settings.planner, start=job.start, end=end, step=job.step
    )
