"""What the selection learned, as the warehouse keeps it: a round a job that ended, and every policy's outcome on it (M5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isnan
from typing import Any

import numpy as np
import pandas as pd

from optimization.replay.score import Scored
from optimization.selection.contract import Learner, weigh
from optimization.selection.learned import Rounds
from warehouse.issued import read_rows, write_rows
from warehouse.store.connection import Store
from warehouse.times import microseconds

#: A job's rounds are one round: the first in which anything was learned from it, whatever the pool was then.
_JOBS = """
    SELECT job, min(round) AS round, row_number() OVER (ORDER BY min(round), job) - 1 AS place FROM weights
    WHERE policy IN (SELECT unnest($names)) GROUP BY job
"""
#: Of each policy and job the utility that was learned first; the rows of later rounds come first, so that it is written last.
_UTILITIES = f"""
    SELECT place, slot, utility, coalesce(epoch_us(scored_at), 0) AS known_us FROM weights
    JOIN ({_JOBS}) AS jobs USING (job)
    JOIN (SELECT unnest($names) AS policy, generate_subscripts($names, 1) - 1 AS slot) AS pool USING (policy)
    ORDER BY weights.round DESC
"""


def stored_rounds(store: Store, names: Sequence[str]) -> Rounds:
    """What was learned of these policies on every job, in the order of the jobs' rounds; other policies are left out."""
    asked = {"names": list(names)}
    jobs = [str(job) for job, *_ in store.execute(f"SELECT job FROM ({_JOBS}) ORDER BY place", asked)]
    shape = (len(jobs), len(names))
    utilities, known_us = np.full(shape, np.nan), np.zeros(shape, dtype=np.int64)
    if jobs:
        # One pass over columns: a year of rounds is a quarter of a million rows.
        columns = store.arrays(_UTILITIES, asked)
        places = (columns["place"], columns["slot"])
        utilities[places], known_us[places] = columns["utility"], columns["known_us"]
    return Rounds(jobs=tuple(jobs), names=tuple(names), utilities=utilities, known_us=known_us)


def save_scored(
    store: Store,
    turns: Sequence[tuple[pd.Timestamp, Sequence[Scored]]],
    *,
    rounds: Rounds,
    learner: Learner[Any],
) -> Rounds:
    """Keep the outcomes of jobs by the turn that scores them, and what was learned from each, in the order given; all or nothing.

    ``rounds`` is what was learned before; returned is what is learned now. A job that has a round already adds to it the policies
    that it lacks. The weights kept are those that ``learner`` makes of everything learned so far, whoever made those kept before.
    """
    scored = [(at, one) for at, own in turns for one in own]
    if not scored:
        return rounds
    names = rounds.names
    numbers, last = _numbers(store)
    for at, one in scored:
        rounds = rounds.with_job(one.ended.job.name, one.utilities(), microseconds(at, "at"))
        if one.ended.job.name not in numbers:
            last += 1
            numbers[one.ended.job.name] = last
    first = min(rounds.jobs.index(one.ended.job.name) for _, one in scored)
    history = weigh(learner, names, rounds.full(learner), after=first + 1)
    places = {name: place for place, name in enumerate(names)}
    learned = []
    for at, one in scored:
        after = history[rounds.jobs.index(one.ended.job.name) - first].log_weight
        learned += [
            {
                "round": numbers[one.ended.job.name],
                "job": one.ended.job.name,
                "policy": policy,
                "scored_at": at,
                "utility": utility,
                "log_weight": after[places[policy]],
            }
            for policy, utility in one.utilities().items()
        ]
    with store.transaction():
        write_rows(
            store, "outcomes", pd.DataFrame([row for at, one in scored for row in outcome_rows(one, at=at)])
        )
        write_rows(store, "weights", pd.DataFrame(learned))
    return rounds


def _numbers(store: Store) -> tuple[dict[str, int], int]:
    """The number of each job's round, and the last number that is taken."""
    rows = store.execute("SELECT job, min(round), max(round) FROM weights GROUP BY job ORDER BY min(round)")
    return {str(job): int(first) for job, first, _ in rows}, max((int(top) for _, _, top in rows), default=0)


def outcome_rows(scored: Scored, *, at: pd.Timestamp) -> list[dict[str, Any]]:
    """Rows of the table of outcomes, one a policy."""
    return [
        {
            "job": row.job,
            "policy": row.policy,
            "scored_at": at,
            "utility_usd": row.utility_usd,
            "value_usd": outcome.value_usd,
            "cost_usd": row.cost_usd,
            "termination_cost_usd": outcome.termination_cost_usd,
            "on_time": row.on_time,
            "finished_slot": outcome.finished_slot,
            "finish_slots": outcome.finish_slots,
            "spot_share": row.spot_share,
            "progress": outcome.progress,
            "utility_normalised": row.normalised,
            "hindsight_low_usd": scored.hindsight_low,
            "hindsight_high_usd": scored.hindsight_high,
            "allocations": json.dumps([[a.on_demand, a.spot] for a in outcome.allocations]),
            "details": json.dumps(
                {
                    "utility": row.utility,
                    "gap_to_hindsight": row.gap_to_hindsight,
                    "on_demand_only_usd": row.on_demand_only_usd,
                    "lost_to_forecast_error_usd": (
                        None if isnan(row.lost_to_forecast_error_usd) else row.lost_to_forecast_error_usd
                    ),
                    "synthetic": list(scored.ended.assumptions),
                }
            ),
        }
        for row, outcome in zip(scored.ledger, scored.outcomes, strict=True)
    ]


def outcome_frame(store: Store, names: Sequence[str]) -> pd.DataFrame:
    """Outcomes of these policies in the columns that `optimization.replay.score.leaderboard` reads.

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
