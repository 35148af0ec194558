"""``slackwater experiment evidence``: what a job is told, and what becomes of it, by level of evidence of availability (M13.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer, progress, say
from slackwater.flows.show.blocks import Notes, Section, numbers
from slackwater.optimization.belief.archetypes import archetypes, request_states
from slackwater.optimization.belief.launches import Launch, Launches
from slackwater.optimization.moving.definition import in_one_market
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.decision import Decision, Effort, LiveJob, decide
from slackwater.optimization.replay.run import PlanMemo, see, spread
from slackwater.optimization.world.replay import Launcher, WorldCase, replay_in_world
from slackwater.optimization.world.terms import on_demand_alone, world_terms
from slackwater.studies.experiments.study import StudyOptions, quick_look
from slackwater.studies.experiments.world import Kind, Stretch, stretches, world_case
from slackwater.studies.trials.comparison import resampled
from slackwater.warehouse.history import Market

POLICY: Final = "Stochastic(24)"
#: Values of jobs in units of on-demand only; None: a hard deadline.
WORTHS: Final = (None, 0.8, 0.45)
#: Loads of the jobs, in turn.
LOADS: Final = (0.3, 0.5, 0.7)
#: Slots between two probes at level 3, and the slots of record that each kind of evidence has.
PROBED_EVERY: Final = 8
DAY, WEEK = 48, 336
#: Kinds of evidence: a level, and how much of it there is.
KINDS: Final = (
    "0, prices only",
    "1, a first launch",
    "1, launches for 24 h",
    "3, a probe every 4 h for a week",
    "4, counts for 24 h",
    "4, counts for 10 days",
)
EVERY_DAYS, FAST_EVERY_DAYS = 2, 6
EFFORT: Final = Effort(solver_seconds=1.0, risk_paths=200, seed=7)
#: Bounds of predicted risk for its reliability.
BINS: Final = (0.0, 0.05, 0.2, 0.4, 0.6, 1.0)


def job_case(stretch: Stretch, worth: float | None) -> WorldCase:
    """Return a job that begins at a start, with a hard deadline or worth a share of on-demand only."""
    load = LOADS[stretch.turn % len(LOADS)]
    price = "moving" if stretch.price is not None else "0.25"
    made = world_case(stretch, Kind(form="linear", price=price, times="short", load=load))
    if worth is None:
        return made
    (known,) = made.cases
    soft = replace(known.job, must_finish=False, value=worth * unit_usd(known.job, stretch.hours))
    return WorldCase.of(replace(known, job=soft), made.readings[0])


def unit_usd(job: Any, slot_hours: float) -> float:
    """Return the cost of on-demand only, at 1 USD an instance-hour."""
    terms = world_terms(job, on_demand_usd=1.0, slot_hours=slot_hours)
    return on_demand_alone(terms, job.deadline_slots * slot_hours * 3600.0)[1]


def with_evidence(case: WorldCase, stretch: Stretch, kind: str) -> tuple[WorldCase, Launches]:
    """Return the case with what is known of availability, and the evidence of its request at the first slot.

    The zone is left out of the archetypes. With counts in every slot the policy plans on them alone.
    """
    ((own,), first, counts) = case.cases, stretch.first, stretch.counts
    job = own.job
    zone = Market.parse(stretch.series.split("@")[0]).zone
    prior = archetypes(job.n_max, stretch.hours, (zone,))
    if kind.startswith("4"):
        keep = min(first, DAY if "24 h" in kind else first)
        cut = slice(first - keep, None)
        evidence = Launches.of(job.n_max, (), stretch.slots, prior, counts=counts[cut], first=keep)
        if own.record is not None:
            short = replace(
                own.record,
                price=own.record.price[cut],
                available=own.record.available[cut],
                peers=own.record.peers[:, cut],
                first=keep,
            )
            own = replace(own, record=short)
        return replace(case, cases=(own,)), evidence
    states = request_states(counts, job.n_max)
    known = np.flatnonzero(np.isfinite(counts)) - first
    before = {"1, launches for 24 h": DAY, "3, a probe every 4 h for a week": WEEK}.get(kind, 0)
    begins = min(first, before)
    if kind.startswith("0"):
        known = known[:0]
    elif kind.startswith("3"):
        known = known[known >= 0]
    launches = [Launch(slot=int(k), state=int(states[first + k])) for k in known if k >= -begins]
    read = None
    if kind.startswith("3"):
        read = counts[first - begins :].copy()
        read[np.arange(len(read)) % PROBED_EVERY != 0] = np.nan
        read[begins:] = np.nan
    evidence = Launches.of(job.n_max, launches, stretch.slots, prior, counts=read, first=begins)
    return replace(case, cases=(replace(own, launches=evidence),)), evidence


def first_decision(case: WorldCase, evidence: Launches, start: pd.Timestamp) -> Decision:
    """Return the decision of the first slot with its expected outcome."""
    (known,) = case.cases
    window = known.window
    if not evidence.is_read(0):
        window = replace(
            window,
            available=np.full(len(window), known.job.n_max, dtype=np.int64),
            observed=np.full(len(window), True),
            availability_observed=False,
        )
    live = LiveJob(
        job=in_one_market(known.job, sold=True),
        start=start,
        step=pd.Timedelta(hours=window.slot_hours),
        slot=0,
        seen=(see(known.job, window, None, known.record, evidence),),
        decided={},
    )
    return decide(live, policy_named(POLICY), EFFORT)


def run_start(stretch: Stretch, shared: None = None) -> np.ndarray:
    """Return for each kind of evidence and worth: expected cost, p10, p90, predicted risk, cost paid and late, (kinds, worths, 6).

    Costs are in units of on-demand only.
    """
    found = np.empty((len(KINDS), len(WORTHS), 6))
    policy = policy_named(POLICY)
    for k, kind in enumerate(KINDS):
        for w, worth in enumerate(WORTHS):
            case, evidence = with_evidence(job_case(stretch, worth), stretch, kind)
            unit = unit_usd(case.cases[0].job, stretch.hours)
            told = first_decision(case, evidence, stretch.start).expected
            (outcome,) = replay_in_world([policy], case, launcher=Launcher.SLOTS, memo=PlanMemo())
            usd = [told.cost_usd, told.cost_p10_usd, told.cost_p90_usd]
            found[k, w, :3] = np.array(usd) / unit
            found[k, w, 3:] = told.late_probability, outcome.total_cost_usd / unit, not outcome.on_time
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRuns:
    """Results of all starts: ``runs`` (starts, kinds, worths, 6) as of `run_start`, ``block`` (starts,) of each start."""

    runs: np.ndarray
    block: np.ndarray
    series: tuple[str, ...]


def run_evidence(found: Sequence[Stretch], *, processes: int = 1, tell: Any = None) -> EvidenceRuns:
    """Decide and replay the jobs of every start."""
    results = list(spread(run_start, found, None, processes=processes, progress=tell))
    return EvidenceRuns(
        runs=np.array(results),
        block=np.array([f"{one.series} {one.start.floor('D').isoformat()}" for one in found]),
        series=tuple(sorted({one.series for one in found})),
    )


def level_row(runs: EvidenceRuns, k: int, w: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return cost, lateness, expectation against payment, and calibration of a kind of evidence and worth."""
    expected, low, high, risk, paid, late = runs.runs[:, k, w].T
    draws = resampled(np.stack([expected, paid], axis=1), blocks=runs.block, rng=rng)
    ratio = draws.means[:, :1] / draws.means[:, 1:] - 1.0
    bounds = draws.interval(ratio)
    return {
        "evidence": KINDS[k],
        "worth": WORTHS[w],
        "jobs": len(paid),
        "cost": float(paid.mean()),
        "late": float(late.mean()),
        "risk": float(risk.mean()),
        "brier": float(np.mean((risk - late) ** 2)),
        "brier_of_mean": float(np.mean((late.mean() - late) ** 2)),
        "expected": float(expected.mean()),
        "expected_less_paid": float(expected.mean() / paid.mean() - 1.0),
        "interval": [float(bounds[0][0]), float(bounds[1][0])],
        "above_p90": float(np.mean(paid > high + 1e-6)),
        "below_p10": float(np.mean(paid < low - 1e-6)),
        "width": float(np.mean(high - low)),
    }


def reliability_rows(runs: EvidenceRuns) -> list[dict[str, Any]]:
    """Return by kind of evidence and predicted risk of soft deadlines how many jobs were late."""
    rows = []
    for k, kind in enumerate(KINDS):
        risk, late = (runs.runs[:, k, 1:, i].ravel() for i in (3, 5))
        place = np.digitize(risk, BINS[1:-1], right=True)
        for b in range(len(BINS) - 1):
            own = place == b
            if own.any():
                rows.append(
                    {
                        "evidence": kind,
                        "risk": f"{BINS[b]:g} to {BINS[b + 1]:g}",
                        "jobs": int(own.sum()),
                        "predicted": float(risk[own].mean()),
                        "observed": float(late[own].mean()),
                    }
                )
    return rows


def evidence_answer(runs: EvidenceRuns, *, data: Path, seed: int, fast: bool) -> dict[str, Any]:
    """Return the JSON object of the command."""
    rng = np.random.default_rng([seed, 1])
    rows = [level_row(runs, k, w, rng) for w in range(len(WORTHS)) for k in range(len(KINDS))]
    return {
        "data": str(data),
        "seed": seed,
        "fast": fast,
        "starts": len(runs.runs),
        "series": list(runs.series),
        "levels": rows,
        "reliability": reliability_rows(runs),
        "late_under_guard": int(runs.runs[:, :, 0, 5].sum()),
    }


def evidence_study(study: StudyOptions, *, processes: int | None = None) -> Answer:
    """Run the experiment on a folder."""
    every = FAST_EVERY_DAYS if study.fast else EVERY_DAYS
    say(f"read {study.data}")
    found = stretches(study.data, every_days=every, rng=np.random.default_rng(study.seed))
    with progress("starts", len(found)) as told:
        runs = run_evidence(found, processes=study.workers(processes), tell=told)
    return evidence_report(evidence_answer(runs, data=study.data, seed=study.seed, fast=study.fast))


COLUMNS: Final = {
    "evidence": "Level, evidence", "cost": "Paid", "late": "Late", "risk": "Predicted", "expected": "Expected",
    "expected_less_paid": "Expected less paid", "from": "95 % from", "to": "to", "above_p90": "Above p90",
    "below_p10": "Below p10", "width": "p90 less p10", "jobs": "Jobs",
}  # fmt: skip


def evidence_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: a table for each worth, and the reliability of the risk."""
    blocks = []
    for worth in WORTHS:
        rows = [
            row | {"from": row["interval"][0], "to": row["interval"][1]}
            for row in answer["levels"]
            if row["worth"] == worth
        ]
        title = "Hard deadlines" if worth is None else f"Soft deadlines, worth {worth:g}"
        blocks.append(Section(title, [numbers(COLUMNS, rows, digits=3)], title.lower().replace(" ", "-")))
    columns = {
        "evidence": "Level, evidence", "risk": "Predicted risk", "jobs": "Jobs", "predicted": "Mean", "observed": "Late",
    }  # fmt: skip
    blocks.append(
        Section(
            "Risk of soft deadlines against the outcome",
            [numbers(columns, answer["reliability"], digits=3)],
            "risk",
        )
    )
    return Answer(
        title="Expectations by level of evidence",
        about=(
            f"{answer['starts']} starts in {len(answer['series'])} count series of {answer['data']}, seed "
            f"{answer['seed']}{quick_look(answer)}; {POLICY}, linear jobs, boot 2 minutes, restart 4, a checkpoint every 10. Costs "
            "are in units of on-demand only. Expected cost and risk are those of the first decision."
        ),
        value=answer,
        blocks=[*blocks, Notes([f"{answer['late_under_guard']} jobs with a hard deadline were late."])],
        notes=[
            "The zone of a job is left out of the archetypes. Below level 4 a launch is tried at every slot of the job; "
            "at level 0 it teaches nothing.",
            "Level 2 is not measured: no series has placement scores. Blocks are series and days.",
        ],
    )
