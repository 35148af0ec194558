"""Rounds of the selection, a round per ended job with every policy's outcome on it, and the stored outcomes (M5)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isnan
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from slackwater.flows.ledger.fields import saving
from slackwater.flows.ledger.jobs import StoredJob
from slackwater.flows.show.formats import rows_of
from slackwater.optimization.selection.contract import Learner, weigh
from slackwater.optimization.selection.learned import Rounds
from slackwater.optimization.window.plan import SLOT, Outcome
from slackwater.optimization.world.replay import WorldOutcome
from slackwater.optimization.world.simulation import SECOND_TOLERANCE
from slackwater.warehouse.documents import read_list, read_object
from slackwater.warehouse.issued import read_rows, write_rows
from slackwater.warehouse.store.connection import Store
from slackwater.warehouse.times import microseconds

if TYPE_CHECKING:
    from slackwater.optimization.replay.score import ScoredJob

#: All rounds of a job count as the first of them, whatever the pool was then.
_JOBS = """
    SELECT job, min(round) AS round, row_number() OVER (ORDER BY min(round), job) - 1 AS place FROM weights
    WHERE policy IN (SELECT unnest($names)) GROUP BY job
"""
#: The first utility learned of each policy and job: rows of later rounds come first, so the first
#: round is written last.
_UTILITIES = f"""
    SELECT place, slot, utility, coalesce(epoch_us(scored_at), 0) AS known_us FROM weights
    JOIN ({_JOBS}) AS jobs USING (job)
    JOIN (SELECT unnest($names) AS policy, generate_subscripts($names, 1) - 1 AS slot) AS pool USING (policy)
    ORDER BY weights.round DESC
"""


def stored_rounds(store: Store, names: Sequence[str]) -> Rounds:
    """Return the rounds of these policies on every job, in the order of the jobs' rounds."""
    parameters = {"names": list(names)}
    jobs = [str(job) for job, *_ in store.execute(f"SELECT job FROM ({_JOBS}) ORDER BY place", parameters)]
    shape = (len(jobs), len(names))
    utilities, known_us = np.full(shape, np.nan), np.zeros(shape, dtype=np.int64)
    if jobs:
        # One pass over columns: a year of rounds is a quarter of a million rows.
        columns = store.arrays(_UTILITIES, parameters)
        places = (columns["place"], columns["slot"])
        utilities[places], known_us[places] = columns["utility"], columns["known_us"]
    return Rounds(jobs=tuple(jobs), names=tuple(names), utilities=utilities, known_us=known_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRounds:
    """Outcomes of newly scored jobs with the time of their turn, and the rounds that they add.

    ``rounds`` are all rounds by group of policies. ``weights`` are the rows of the new rounds,
    without the number of the round.
    """

    scored: tuple[tuple[pd.Timestamp, ScoredJob], ...]
    rounds: tuple[Rounds, ...]
    weights: tuple[dict[str, Any], ...]


def learn(
    turns: Sequence[tuple[pd.Timestamp, Sequence[ScoredJob]]],
    *,
    groups: Sequence[tuple[Rounds, Learner[Any]]],
) -> NewRounds:
    """Return the rounds that the outcomes of jobs add, by the turn that scores them, in the given order.

    A group is a set of policies to choose from, with its rounds so far and its learner; each job belongs to a
    single group. A job that has a round adds only the policies missing from it. The weights are those of this
    learner over all rounds so far, whichever learner computed the weights stored before.
    """
    scored = tuple((at, score) for at, own in turns for score in own)
    learned = [rounds for rounds, _ in groups]
    groups_of: list[int] = []
    for at, score in scored:
        utilities = score.utilities()
        g = next(g for g, rounds in enumerate(learned) if utilities.keys() & set(rounds.names))
        groups_of.append(g)
        learned[g] = learned[g].with_job(score.ended.run.name, utilities, microseconds(at, "at"))
    firsts = {
        g: min(learned[g].jobs.index(score.ended.run.name) for (_, score), h in zip(scored, groups_of, strict=True) if h == g)
        for g in set(groups_of)
    }  # fmt: skip
    history = {
        g: weigh(groups[g][1], learned[g].names, learned[g].full(groups[g][1]), after=first + 1)
        for g, first in firsts.items()
    }
    weights: list[dict[str, Any]] = []
    for (at, score), g in zip(scored, groups_of, strict=True):
        name, names = score.ended.run.name, learned[g].names
        after = history[g][learned[g].jobs.index(name) - firsts[g]].log_weight
        weights += [
            {
                "job": name,
                "policy": policy,
                "scored_at": at,
                "utility": utility,
                "log_weight": after[names.index(policy)],
            }
            for policy, utility in score.utilities().items()
            if policy in names
        ]
    return NewRounds(scored=scored, rounds=tuple(learned), weights=tuple(weights))


def save_scored(store: Store, learned: NewRounds) -> None:
    """Store the outcomes of newly scored jobs and their rounds, all or nothing; a new job gets the next number."""
    if not learned.scored:
        return
    numbers, last = _numbers(store)
    for _, score in learned.scored:
        if score.ended.run.name not in numbers:
            last += 1
            numbers[score.ended.run.name] = last
    rows = [{"round": numbers[row["job"]], **row} for row in learned.weights]
    outcomes = [row for at, score in learned.scored for row in outcome_rows(score, at=at)]
    with store.transaction():
        write_rows(store, "outcomes", pd.DataFrame(outcomes))
        write_rows(store, "weights", pd.DataFrame(rows))


def _numbers(store: Store) -> tuple[dict[str, int], int]:
    """Return the number of each job's round, and the highest number in use."""
    rows = store.execute("SELECT job, min(round), max(round) FROM weights GROUP BY job ORDER BY min(round)")
    return {str(job): int(first) for job, first, _ in rows}, max((int(top) for _, _, top in rows), default=0)


def outcome_rows(scored: ScoredJob, *, at: pd.Timestamp) -> list[dict[str, Any]]:
    """Return rows of the table of outcomes, one per policy; for a multi-market job ``details`` includes its moves."""
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
                    "model": row.model,
                    **({"finish_seconds": outcome.finish} if isinstance(outcome, WorldOutcome) else {}),
                    "utility": row.utility,
                    "gap_to_hindsight": row.gap_to_hindsight,
                    "on_demand_only_usd": row.on_demand_only_usd if scored.on_demand_known else None,
                    "unit_usd": row.on_demand_only_usd,
                    "hindsight_usd": scored.hindsight_usd,
                    "lost_to_forecast_error_usd": (
                        None if isnan(row.lost_to_forecast_error_usd) else row.lost_to_forecast_error_usd
                    ),
                    "synthetic": list(scored.ended.assumptions),
                    **({} if outcome.places is None else _moves(outcome, scored.ended.names)),
                }
            ),
        }
        for row, outcome in zip(scored.ledger, scored.outcomes, strict=True)
    ]


def _moves(outcome: Outcome, markets: Sequence[str]) -> dict[str, Any]:
    """Return the market of each slot (None: none), and number and cost of the moves; ``ended_in``: after the deadline."""
    return {
        "places": [None if m is None else markets[m] for m in outcome.places or ()],
        "moves": outcome.moves,
        "moving_usd": outcome.moving_usd,
        "ended_in": None if outcome.ended_in is None else markets[outcome.ended_in],
    }


#: Keys present in the details of every outcome. Without ``model`` it is of the slot model: that of older versions.
_SCORE_KEYS = ("utility", "on_demand_only_usd", "gap_to_hindsight")


def outcome_frame(store: Store, names: Sequence[str]) -> pd.DataFrame:
    """Return outcomes of these policies in the columns that `slackwater.optimization.replay.score.leaderboard` reads.

    ``hindsight_usd`` is NaN for jobs scored by a version that did not store it. Additional columns
    are ``job``, ``model`` (of the simulation: "slot" or "world"), and ``lost_to_forecast_error``
    (units of OD-only cost), NaN where no forecast was issued or the loss was not measured.
    """
    rows = read_rows(store, "outcomes")
    rows = rows[rows["policy"].isin(list(names))]
    found = [read_object(text, *_SCORE_KEYS) for text in rows["details"]]
    rows = rows[np.array([details_of_row is not None for details_of_row in found], dtype=bool)]
    details = [details_of_row for details_of_row in found if details_of_row is not None]
    return pd.DataFrame(
        {
            "job": rows["job"].to_numpy(),
            "policy": rows["policy"].to_numpy(),
            "model": [detail.get("model", SLOT) for detail in details],
            "utility": [detail["utility"] for detail in details],
            "utility_usd": rows["utility_usd"].to_numpy(dtype=float),
            "cost_usd": rows["cost_usd"].to_numpy(dtype=float),
            "on_demand_only_usd": [_number(detail["on_demand_only_usd"]) for detail in details],
            "hindsight_usd": [detail.get("hindsight_usd", np.nan) for detail in details],
            "finish_slots": rows["finish_slots"].to_numpy(dtype=float),
            "on_time": rows["on_time"].to_numpy(dtype=bool),
            "gap_to_hindsight": [detail["gap_to_hindsight"] for detail in details],
            "lost_to_forecast_error": [
                np.nan
                if detail.get("lost_to_forecast_error_usd") is None
                else detail["lost_to_forecast_error_usd"]
                / (detail.get("unit_usd") or detail["on_demand_only_usd"])
                for detail in details
            ],
        }
    )


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def finish_at(start: pd.Timestamp, seconds: float) -> pd.Timestamp:
    """Return the time of a finish, rounded up to a second."""
    return start + pd.Timedelta(seconds=ceil(seconds - SECOND_TOLERANCE))


def outcome_values(
    outcome: Outcome, start: pd.Timestamp, step: pd.Timedelta, *, valued: bool, observed: bool
) -> dict[str, Any]:
    """Return a simulated policy as plain values; what depends on an imputed value or on unobserved spot is None (M2.1)."""
    seconds = outcome.finish_seconds(step.total_seconds())
    return {
        "policy": outcome.policy,
        "model": outcome.model,
        "cost_usd": outcome.total_cost_usd,
        "finish": None if seconds is None else finish_at(start, seconds),
        "on_time": outcome.on_time if observed or not outcome.spot_share else None,
        "spot_share": outcome.spot_share,
        "utility_usd": outcome.utility_usd if valued else None,
    }


def scored_in_slot_model(store: Store) -> set[str]:
    """Return the jobs that an older version scored in the slot model (M2.4)."""
    rows = store.execute(
        "SELECT DISTINCT job FROM outcomes WHERE coalesce(TRY_CAST(details AS JSON) ->> 'model', 'slot') = 'slot'"
    )
    return {str(job) for (job,) in rows}


def jobs_scored_at(store: Store, times: Sequence[pd.Timestamp]) -> list[int]:
    """Return the number of jobs that the turn of each time has scored."""
    rows = store.execute("SELECT epoch_us(scored_at), count(DISTINCT job) FROM outcomes GROUP BY ALL")
    found = dict(rows)
    return [int(found.get(microseconds(at, "at"), 0)) for at in times]


def outcomes_of(store: Store, job: StoredJob) -> list[dict[str, Any]]:
    """Return the simulated outcome of every policy on a job, by descending utility, with the keys of `OUTCOME` and more.

    For jobs with a hard deadline, figures that depend on the imputed value are None (M2.1):
    utilities and the upper hindsight bound; costs are given.
    """
    rows = rows_of(read_rows(store, "outcomes", where={"job": job.request.name}))
    rows.sort(key=lambda row: (-row["utility_usd"], row["policy"]))
    valued = job.request.value_usd is not None
    return [
        _outcome(job, row, details, valued=valued)
        for row in rows
        if (details := read_object(row["details"], *_SCORE_KEYS)) is not None
    ]


def _outcome(
    job: StoredJob, row: Mapping[str, Any], details: Mapping[str, Any], *, valued: bool
) -> dict[str, Any]:
    slots, alone = row["finish_slots"], details["on_demand_only_usd"]
    finished = None if pd.isna(slots) else int(slots)
    seconds = details.get("finish_seconds")
    if seconds is None and finished is not None:
        seconds = finished * job.step.total_seconds()
    return {
        "policy": row["policy"],
        "model": details.get("model", SLOT),
        "cost_usd": row["cost_usd"],
        "on_demand_only_usd": alone,
        **saving(row["cost_usd"], alone, is_finished=finished is not None),
        "on_time": bool(row["on_time"]),
        "finish": None if seconds is None else finish_at(job.start, seconds),
        "finish_slots": finished,
        "spot_share": row["spot_share"],
        "utility_usd": row["utility_usd"] if valued else None,
        "utility": details["utility"] if valued else None,
        "hindsight_usd": details.get("hindsight_usd"),
        "hindsight_high_usd": row["hindsight_high_usd"] if valued else None,
        "gap_to_hindsight": details["gap_to_hindsight"],
        "lost_to_forecast_error_usd": details.get("lost_to_forecast_error_usd"),
        "allocations": read_list(row["allocations"]),
        **{key: details.get(key) for key in ("moves", "moving_usd", "places")},
    }
