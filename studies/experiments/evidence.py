"""``slackwater experiment evidence``: what a job is told, and what becomes of it, by level of evidence of availability (M13.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from slackwater.flows.command import Answer, progress, say
from slackwater.flows.executor import fan_out
from slackwater.flows.show.blocks import Notes, Section, numbers
from slackwater.optimization.belief.archetypes import archetypes, request_states
from slackwater.optimization.belief.launches import UNKNOWN, Launch, Launches, request_counts
from slackwater.optimization.belief.mixture import Mixture
from slackwater.optimization.moving.definition import in_one_market
from slackwater.optimization.policies.pool import policy_named
from slackwater.optimization.replay.decision import Decision, Effort, LiveJob, decide
from slackwater.optimization.replay.run import PlanMemo, see
from slackwater.optimization.world.replay import Launcher, WorldCase, replay_in_world
from slackwater.optimization.world.terms import on_demand_alone, world_terms
from slackwater.studies.experiments.belief_calibration import (
    AHEAD,
    EVERY,
    FAST_EVERY,
    LOSS_SLOTS,
    all_predictions,
    availability_rows,
    belief_tapes,
    loss_rows,
)
from slackwater.studies.experiments.study import StudyOptions, quick_look, with_bounds
from slackwater.studies.experiments.world import Kind, Stretch, stretches, world_case
from slackwater.studies.experiments.world_jobs import DEADLINES, RECORD_SLOTS
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
#: Jobs on markets drawn from the archetypes, their sizes in turn, and the length of their slots.
DRAWN, FAST_DRAWN = 96, 6
SIZES: Final = (1, 4, 8, 16)
DRAWN_HOURS: Final = 0.5
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
        within = None if stretch.before is None else stretch.before[cut]
        evidence = Launches.of(
            job.n_max, (), stretch.slots, prior, counts=counts[cut], within=within, first=keep
        )
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


def drawn_stretches(many: int, rng: np.random.Generator) -> list[Stretch]:
    """Return a start in each of ``many`` markets drawn from the archetypes (M13.2): the markets that M13.3 believes in."""
    return [_drawn_stretch(k, rng) for k in range(many)]


def _drawn_stretch(turn: int, rng: np.random.Generator) -> Stretch:
    request, slots = SIZES[turn % len(SIZES)], DEADLINES[turn // len(SIZES) % len(DEADLINES)]
    nothing = Mixture.of(archetypes(request, DRAWN_HOURS), np.array([UNKNOWN]))
    (market,) = nothing.draw(1, rng)
    states = market.sample(RECORD_SLOTS + slots, paths=1, rng=rng)
    counts = request_counts(request)
    between = counts[market.sample_inside(states, rng)[0]].astype(float)
    return Stretch(
        market="drawn",
        series=f"drawn/drawn/drawn-{turn}/drawn@archetypes",
        start=pd.Timestamp("2026-01-01", tz="UTC"),
        first=RECORD_SLOTS,
        slots=slots,
        turn=turn // (len(SIZES) * len(DEADLINES)),
        n_max=request,
        counts=counts[states[0, :-1]].astype(float),
        within=between[RECORD_SLOTS:],
        before=np.concatenate([np.full((1, between.shape[1]), np.nan), between[:RECORD_SLOTS]]),
        price=None,
        peers=np.empty((0, RECORD_SLOTS + slots)),
        hours=DRAWN_HOURS,
    )


def first_decision(case: WorldCase, evidence: Launches, start: pd.Timestamp) -> Decision:
    """Return the decision of the first slot with its expected outcome."""
    (known,) = case.cases
    window = known.window
    if not evidence.has_count(0):
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


def run_start(stretch: Stretch, worths: Sequence[float | None] = WORTHS) -> np.ndarray:
    """Return for each kind of evidence and worth: expected cost, p10, p90, predicted risk, cost paid and late, (kinds, worths, 6).

    Costs are in units of on-demand only.
    """
    found = np.empty((len(KINDS), len(worths), 6))
    policy = policy_named(POLICY)
    for k, kind in enumerate(KINDS):
        for w, worth in enumerate(worths):
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


def run_evidence(
    found: Sequence[Stretch], *, worths: Sequence[float | None] = WORTHS, processes: int = 1, tell: Any = None
) -> EvidenceRuns:
    """Decide and replay the jobs of every start."""
    results = list(fan_out(run_start, found, worths, processes=processes, progress=tell))
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


def drawn_rows(drawn: EvidenceRuns, seed: int) -> list[dict[str, Any]]:
    """Return `level_row` of jobs with hard deadlines on drawn markets, by kind of evidence."""
    rng = np.random.default_rng([seed, 3])
    return [level_row(drawn, k, 0, rng) for k in range(len(KINDS))]


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


def evidence_answer(
    runs: EvidenceRuns, drawn: EvidenceRuns, belief: pd.DataFrame, *, data: Path, seed: int, fast: bool
) -> dict[str, Any]:
    """Return the JSON object of the command.

    ``drawn`` are the jobs with hard deadlines on drawn markets, ``belief`` the `all_predictions` of measured markets.
    """
    rng = np.random.default_rng([seed, 1])
    rows = [level_row(runs, k, w, rng) for w in range(len(WORTHS)) for k in range(len(KINDS))]
    return {
        "data": str(data),
        "seed": seed,
        "fast": fast,
        "starts": len(runs.runs),
        "series": list(runs.series),
        "levels": rows,
        "drawn_markets": drawn_rows(drawn, seed),
        "availability": availability_rows(belief, np.random.default_rng([seed, 4])),
        "losses": loss_rows(belief, np.random.default_rng([seed, 5])),
        "reliability": reliability_rows(runs),
        "late_under_guard": int(runs.runs[:, :, 0, 5].sum() + drawn.runs[:, :, 0, 5].sum()),
    }


def evidence_study(study: StudyOptions, *, processes: int | None = None) -> Answer:
    """Run the experiment on a folder."""
    every = FAST_EVERY_DAYS if study.fast else EVERY_DAYS
    say(f"read {study.data}")
    found = stretches(study.data, every_days=every, rng=np.random.default_rng(study.seed))
    many = study.workers(processes)
    with progress("starts", len(found), lines=True) as told:
        runs = run_evidence(found, processes=many, tell=told)
    markets = drawn_stretches(FAST_DRAWN if study.fast else DRAWN, np.random.default_rng([study.seed, 2]))
    with progress("drawn markets", len(markets), lines=True) as told:
        drawn = run_evidence(markets, worths=WORTHS[:1], processes=many, tell=told)
    tapes = belief_tapes(study.data)
    with progress("series of counts", len(tapes), lines=True) as told:
        belief = all_predictions(tapes, FAST_EVERY if study.fast else EVERY, processes=many, tell=told)
    return evidence_report(
        evidence_answer(runs, drawn, belief, data=study.data, seed=study.seed, fast=study.fast)
    )


COLUMNS: Final = {
    "evidence": "Level, evidence", "cost": "Paid", "late": "Late", "risk": "Predicted", "expected": "Expected",
    "expected_less_paid": "Expected less paid", "from": "95 % from", "to": "to", "above_p90": "Above p90",
    "below_p10": "Below p10", "width": "p90 less p10", "jobs": "Jobs",
}  # fmt: skip


def _belief_section(answer: Mapping[str, Any]) -> Section:
    """Return the section on predicted and observed availability, by state and age, and on losses."""
    rows = [
        {"state": row["state"], "age": row["age"], "slots": row["slots"]}
        | {f"{key} {h}": row[f"ahead_{h}"][key] for h in AHEAD for key in ("predicted", "observed")}
        for row in answer["availability"]
    ]
    columns = {"state": "State", "age": "For slots", "slots": "Predictions"} | {
        f"{key} {h}": f"{key} {h} ahead" for h in AHEAD for key in ("predicted", "observed")
    }
    losses = {
        "request": "Request", "slots": "Predictions", "expected": "Expected", "observed": "Observed",
        "expected_less_observed": "Expected less observed", "from": "95 % from", "to": "to",
    }  # fmt: skip
    return Section(
        "Availability of all of a request, with counts",
        [
            numbers(columns, rows, digits=2),
            numbers(
                losses,
                [with_bounds(row) for row in answer["losses"]],
                digits=3,
                title=f"Losses in {LOSS_SLOTS} slots",
            ),
        ],
        "availability",
    )


def evidence_report(answer: Mapping[str, Any]) -> Answer:
    """Return the report: a table for each worth, and the reliability of the risk."""
    blocks = []
    for worth in WORTHS:
        rows = [with_bounds(row) for row in answer["levels"] if row["worth"] == worth]
        title = "Hard deadlines" if worth is None else f"Soft deadlines, worth {worth:g}"
        blocks.append(Section(title, [numbers(COLUMNS, rows, digits=3)], title.lower().replace(" ", "-")))
    rows = [with_bounds(row) for row in answer["drawn_markets"]]
    blocks.append(
        Section(
            "Markets drawn from the archetypes, hard deadlines",
            [numbers(COLUMNS, rows, digits=3)],
            "drawn-markets",
        )
    )
    blocks.append(_belief_section(answer))
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
            "The zone of a job is left out of the archetypes. Below level 4 a launch is tried at every slot of the job; at "
            "level 0 it teaches nothing.",
            "Drawn markets are those that the belief assumes: there an expectation that differs from the payment in the mean is "
            "wrong in itself, not because markets are others.",
            "Level 2 is not measured: no series has ratings and counts. Blocks are series and days.",
        ],
    )
