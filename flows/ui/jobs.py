"""Data and charts of jobs: the list, and the page of a job with its slots, decisions and the outcome of every policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd

from slackwater.flows.command import all_fit
from slackwater.flows.following import FollowedMarket
from slackwater.flows.histories import try_histories
from slackwater.flows.jobs.bill import paid_by_job
from slackwater.flows.jobs.listing import ListedJob, list_jobs
from slackwater.flows.jobs.predicted import reports_shown
from slackwater.flows.ledger.decisions import read_ledger
from slackwater.flows.ledger.fields import (
    BASELINES,
    DECISION,
    JOB,
    Field,
    assumption,
    columns_of,
    cost_interval,
    finish_interval,
    fold_equal_outcomes,
    outcome_table,
    risk_mark,
)
from slackwater.flows.ledger.headline import compared_words, headline, outlook, over_since
from slackwater.flows.ledger.jobs import StoredJob, find_job, stored_jobs
from slackwater.flows.ledger.open_job import OpenJob
from slackwater.flows.ledger.rounds import outcomes_of
from slackwater.flows.places import PlacedJob, find_market, places_of
from slackwater.flows.show.blocks import Block, Figure, Fold, Table
from slackwater.flows.show.charts import Axis, holdings, lines
from slackwater.flows.show.formats import as_number, percent, plural, usd, utc
from slackwater.flows.turn.opening import open_jobs
from slackwater.flows.turn.report.leaderboard import costs_figure
from slackwater.flows.turn.report.panels import ROUTE_LEGEND, ROUTE_SLOTS, JobRoute, panel, route_figure
from slackwater.flows.ui.reading import Reading
from slackwater.optimization.job.definition import is_finished
from slackwater.optimization.replay.decision import NOTHING
from slackwater.optimization.replay.score import BEST_MARKET
from slackwater.warehouse.errors import SlackwaterError
from slackwater.warehouse.history import History, Market

TOP_OUTCOMES: Final = 10  # Outcomes of a job that are shown unfolded
#: States of a job with their explanations.
STATES: Final = {
    "running": "its slots are being decided",
    "waiting": "it has not begun",
    "finished": "its work is done, its deadline is in the future",
    "withdrawn": "its owner ended it before its work was done, its deadline is in the future",
    "set aside": "an example, no longer planned since there is a job of yours",
    "ended": "its deadline has passed",
}
#: Outcomes of ended jobs, in the order of the list.
ENDINGS: Final = ("on time", "late", "missed", "given up", "withdrawn", "not known", "replayed only")
RECENT_SLOTS: Final = 48  # Slots in the small chart of a job's instances
PAGE_JOBS: Final = 40  # Jobs per page of the list


#: State of a job up to the slot of its newest decision or its end: its slots and the figures of its row.
Standing: TypeAlias = dict[str, Any]
#: Figures of progress in the row of a job; None where they cannot be computed. ``slots_ahead`` is relative to uniform
#: progress, negative when behind; ``reported_at`` is None if the progress is computed from the decisions only.
PROGRESS: Final = ("share_done", "share_expected", "slots_ahead", "finished_at", "reported_at")


def jobs_data(
    reading: Reading, *, state: str = "", page: int = 1, patterns: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a page of the jobs in a state ("": all) that match all patterns: open, then ended by descending deadline."""
    stored = [
        job for job in stored_jobs(reading.store) if all_fit(patterns, [job.request.name, job.request.where])
    ]
    present = reading.present
    over = [job for job in stored if job.deadline <= present]
    over.sort(key=lambda job: (job.deadline, job.request.name), reverse=True)
    rows = open_rows(reading, stored)
    counts = {name: sum(row["state"] == name for row in rows) for name in STATES} | {"ended": len(over)}
    first = [row for row in rows if state in ("", row["state"])]
    later = over if state in ("", "ended") else []
    pages = max(1, -(-(len(first) + len(later)) // PAGE_JOBS))
    page = min(max(page, 1), pages)
    low, high = (page - 1) * PAGE_JOBS, page * PAGE_JOBS
    shown = first[low:high]
    ended = job_rows(reading, later[max(0, low - len(first)) : max(0, high - len(first))])
    shown += sorted(ended, key=lambda row: ENDINGS.index(row["outcome"]))
    return {"at": reading.at, "state": state, "counts": counts, "page": page, "pages": pages, "jobs": shown,
            "endings": {name: n for name in ENDINGS if (n := sum(row["outcome"] == name for row in shown))}}  # fmt: skip


def open_rows(reading: Reading, stored: Sequence[StoredJob] | None = None) -> list[dict[str, Any]]:
    """Return the rows of all jobs before their deadline: running, waiting, then finished jobs, by descending risk."""
    known = stored_jobs(reading.store) if stored is None else stored
    present = reading.present
    rows = job_rows(reading, [job for job in known if job.deadline > present])
    order = list(STATES)
    return sorted(rows, key=lambda row: (order.index(row["state"]), -_late(row), row["deadline"], row["job"]))


def _late(row: Mapping[str, Any]) -> float:
    return float((row["hold"] or {}).get("late_probability") or 0.0)


def job_rows(reading: Reading, stored: Sequence[StoredJob]) -> list[dict[str, Any]]:
    """Return the rows of ``job list`` with progress, decided instances, and the best policy once a job is scored (``best``)."""
    listed = list_jobs(reading.store, stored, at=reading.present)
    found, names = standings(reading, listed), [job.name for job in listed]
    best, paid = _best_policies(reading, names), paid_by_job(reading.store, names)
    return [
        job_row(reading, job, found.get(job.name), paid.get(job.name)) | {"best": best.get(job.name)}
        for job in listed
    ]


def _outcome(listed: ListedJob) -> str | None:
    """Return the outcome of a job after its deadline (an item of `ENDINGS`), None before."""
    ending = listed.ending
    if ending is None or not listed.is_over:
        return None
    words = {"finished": "on time", "unknown": "not known", "replayed": "replayed only"}
    return words.get(ending.state, ending.state)


def hourly_cost(decision: Mapping[str, Any]) -> float | None:
    """Return the cost of the decided instances in USD per hour at the prices of the decision; None if a price is unknown."""
    total = 0.0
    for kind in ("on_demand", "spot"):
        count, price = decision[kind], decision[f"{kind}_usd_per_hour"]
        if count and price is None:
            return None
        total += count * (price or 0.0)
    return total


def _best_policies(reading: Reading, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return, for each scored job, the best policy, its cost, and the cost of on-demand only."""
    if not names:
        return {}
    marks = ", ".join("?" * len(names))
    rows = reading.store.execute(
        "SELECT job, policy, cost_usd, TRY_CAST(TRY_CAST(details AS JSON) ->> 'on_demand_only_usd' AS DOUBLE) FROM outcomes "
        f"WHERE job IN ({marks}) AND policy <> ? QUALIFY "
        "row_number() OVER (PARTITION BY job ORDER BY utility_usd DESC, policy) = 1",
        [*names, BEST_MARKET],
    )
    return {
        str(job): {"policy": str(policy), "cost_usd": float(cost), "on_demand_only_usd": alone}
        for job, policy, cost, alone in rows
    }


def job_row(
    reading: Reading, listed: ListedJob, standing: Standing | str | None, paid_usd: float | None
) -> dict[str, Any]:
    """Return the row of a job in ``job list``; ``problem`` is why its progress could not be computed."""
    job, decisions, ending = listed.job, listed.decisions, listed.ending
    request = job.request
    shown, outcome = listed.row(), _outcome(listed)
    row: dict[str, Any] = shown | {
        "source": request.source or "",
        "over_when_added": job.deadline <= job.created_at, "changed_at": job.changed_at,
        "changed_under_way": job.changed_under_way,
        "resumable": request.checkpoint.resumable, "value_usd": request.value_usd,
        "scored": listed.is_scored, "outcome": outcome, "outcome_words": shown["ending"] if outcome else None,
        **dict.fromkeys(PROGRESS), "cost_usd": paid_usd,
        "problem": standing if isinstance(standing, str) else "", "hold": None,
        "recent": [{name: row[name] for name in ("slot", "on_demand", "spot")} for row in decisions[-RECENT_SLOTS:]],
    }  # fmt: skip
    if isinstance(standing, Mapping):
        row |= {key: standing[key] for key in (*PROGRESS, "must_finish")}
        # a report of the end counts, which the newest turn may not have known
        if ending is not None and ending.measured and ending.share is not None:
            row["share_done"] = ending.share
            if ending.state in ("finished", "late"):
                row["finished_at"] = row["finished_at"] or ending.at
    if decisions and row["state"] == "running":
        newest = decisions[-1]
        if request.may_move:
            row |= {"market": newest["market"], "source": newest["source"]}
        row["source"] = row["source"] or newest.get("source") or ""
        row["hold"] = {
            **newest,
            "risk": risk_mark(newest["late_probability"]),
            "usd_per_hour": hourly_cost(newest),
            "current": reading.at is not None
            and pd.Timestamp(newest["slot"]) == reading.at.floor(reading.step),
            "headline": headline(newest, reading.now),
            "outlook": outlook(newest),
            "assumption": assumption(newest),
            "cost_interval": cost_interval(newest),
            "finish_interval": finish_interval(newest),
            "over": over_since(newest, reading.now),
        }
    return row


def job_data(reading: Reading, name: str) -> dict[str, Any]:
    """Return the row, past slots, decisions, reports and outcomes of a job; raises `JobError` for an unknown name."""
    job = find_job(reading.store, name)
    (listed,) = list_jobs(reading.store, [job], at=reading.present)
    standing = standings(reading, [listed]).get(name)
    decisions = listed.decisions
    return {
        "at": reading.at,
        "job": job_row(reading, listed, standing, paid_by_job(reading.store, [name]).get(name)),
        "request": job.request.model_dump(mode="json", exclude_none=True),
        "slots": standing["slots"] if isinstance(standing, Mapping) else [],
        "deadline_slots": standing["deadline_slots"] if isinstance(standing, Mapping) else None,
        "decisions": decisions,
        "reports": reports_shown(reading.store, job, decisions, reading.settings),
        "outcomes": outcomes_of(reading.store, job),
    }


def job_values(reading: Reading, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the charts of a job, and its outcomes with the hindsight bound."""
    return {
        "progress_drawn": job_figure(data, step=reading.step),
        "route": _route(reading, data),
        "route_told": ROUTE_LEGEND,
        "outcomes": outcome_blocks(data["outcomes"]),
        "decided": decided_table(data),
    }


def outcome_blocks(outcomes: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the blocks on the policies' simulated outcomes: best policy, cost chart, best policies with baselines, the rest."""
    if not outcomes:
        return []
    best = next((row for row in outcomes if row["policy"] != BEST_MARKET), outcomes[0])
    moves = "" if best["moves"] is None else f", {plural(best['moves'], 'move')}"
    late = "" if best["on_time"] or best["finish"] is None else ", late"
    saved = (
        "and gives the job up"
        if best["finish"] is None
        else "no on-demand price known"
        if best["saved_usd"] is None
        else compared_words(best["saved_share"], best["saved_usd"])
    )
    text = (
        "After a job has ended its market is known, so every policy is replayed on it with the forecasts issued then (model: "
        f"{best['model']}). The best policy is {best['policy']}: {usd(best['cost_usd'])} USD, {saved}{moves}{late}."
    )
    rows = fold_equal_outcomes(outcomes)
    top = [row for i, row in enumerate(rows) if i < TOP_OUTCOMES or row["policy"] in BASELINES]
    rest = [row for row in rows if row not in top]
    drawn = [
        {
            "policy": row["policy"], "mean_cost_usd": row["cost_usd"], "mean_on_demand_only_usd": row["on_demand_only_usd"],
            "mean_hindsight_usd": row["hindsight_usd"], "on_time": float(row["on_time"]),
        }
        for row in top
    ]  # fmt: skip
    blocks: list[Block] = [
        text,
        costs_figure(drawn),
        outcome_table("The best policies and the baselines", top),
    ]
    if rest:
        blocks.append(Fold(f"The other {len(rest)} policies", [outcome_table("The other policies", rest)]))
    return blocks


def _route(reading: Reading, data: Mapping[str, Any]) -> Figure | None:
    """Return the chart of a multi-market job's route; None for other jobs and if its markets cannot be read."""
    decided = data["decisions"]
    if not decided or decided[-1]["move_usd"] is None:
        return None
    job = find_job(reading.store, data["job"]["job"])
    turn = replace(reading.turn, at=pd.Timestamp(decided[-1]["slot"]))
    try:
        places = places_of(turn, job.request)
    except SlackwaterError:
        return None
    first = min(job.start, turn.at - ROUTE_SLOTS * job.step)
    histories = try_histories(turn, [(place, first) for place in places])
    panels = [
        panel(history, None)
        for history in histories
        if isinstance(history, History) and history.availability_observed
    ]
    if not panels:  # the chart needs the availability of at least one market
        return None
    request = job.request
    return route_figure(JobRoute(job=request.name, request=request, decided=decided, panels=panels))


def decided_table(data: Mapping[str, Any]) -> Table:
    """Return the table of a job's decisions, newest first, with the work done at each decision."""
    shares = {utc(row["slot"]): row["share_done"] for row in data["slots"]}
    rows = [{**row, "work_done": shares.get(utc(row["slot"]))} for row in reversed(data["decisions"])]
    done = Field(
        kind="number", words="Of the job, at the start of the slot.", heading="work done", format=percent
    )
    title = "Every decision for this job, the newest first"
    return Table(title, rows, columns_of(DECISION | {"work_done": done}, JOB, rows), cards=True)


def job_figure(data: Mapping[str, Any], *, step: pd.Timedelta) -> Figure | None:
    """Return the chart of a job, progress and instances run and available; None before its first slot."""
    slots = data["slots"]
    if not slots:
        return None
    start, end = pd.Timestamp(slots[0]["slot"]), pd.Timestamp(data["job"]["deadline"])
    newest = pd.Timestamp(slots[-1]["slot"])
    work = [
        {
            "x": pd.Timestamp(row["slot"]),
            "y": 100 * max(0.0, min(1.0, row["share_done"])),
            "series": "work done",
        }
        for row in slots
    ]
    even = [{"x": at, "y": y, "series": "uniform progress"} for at, y in ((start, 0.0), (end, 100.0))]
    above = lines(
        [*work, *even], ["work done", "uniform progress"], reference="uniform progress", bold="work done", x=Axis(), time=True,
        y=Axis(title="work done, % of the workload", low=0, high=100, ticks=3), points=len(work) < 2,
        marks=[{"x": newest, "text": ""}], height=130,
    )  # fmt: skip
    available = [{"x": pd.Timestamp(row["slot"]), "y": row["available"]} for row in slots]
    if any(row["y"] is not None for row in available):
        available.append({"x": newest + step, "y": available[-1]["y"]})
    else:
        available = []
    below = holdings(
        [box for row in slots for box in _instance_boxes(row, step)],
        {"on-demand": "on-demand", "spot": "series1"}, ends=(start, end),
        y=Axis(title="instances", whole=True, low=0, ticks=4),
        line=available, line_name="spot available", height=110,
    )  # fmt: skip
    caption = (
        f"{100 * slots[-1]['share_done']:.0f} % of the work was done when the slot at {utc(newest)} began; uniform progress would "
        f"be {100 * slots[-1]['share_expected']:.0f} %."
    )
    return Figure(
        specs=[above, below],
        label=f"Progress and instances of job {data['job']['job']}",
        captions=[
            f"{caption} Filled: instances that ran. Outline: instances decided for the present slot (dotted line)."
        ],
    )


def _instance_boxes(row: Mapping[str, Any], step: pd.Timedelta) -> list[dict[str, Any]]:
    """Return the boxes of a slot's instances, on-demand below spot: those run, or the planned instances of the current slot."""
    begin = pd.Timestamp(row["slot"])
    planned = row["held_spot"] is None
    on_demand, spot = (
        row[f"{'decided' if planned else 'held'}_{kind}"] or 0 for kind in ("on_demand", "spot")
    )
    return [
        {
            "x": begin,
            "x2": begin + step,
            "y": low,
            "y2": high,
            "kind": kind,
            "planned": planned,
            "held": high - low,
        }
        for kind, low, high in (("on-demand", 0, on_demand), ("spot", on_demand, on_demand + spot))
        if high > low
    ]


def standings(reading: Reading, jobs: Sequence[ListedJob]) -> dict[str, Standing | str]:
    """Return the state of each job with decisions, or an error message if it cannot be computed."""
    asked: dict[str, PlacedJob] = {}
    found: dict[str, Standing | str] = {}
    decided = {listed.name: listed.decisions for listed in jobs if listed.decisions}
    for listed in jobs:
        if not listed.decisions:
            continue
        try:
            asked[listed.name] = (listed.job, _markets_of(reading, listed.job, listed.decisions))
        except SlackwaterError as error:
            found[listed.name] = str(error)
    ledger = replace(
        read_ledger(reading.store, asked), decisions={name: list(decided[name]) for name in asked}
    )
    running = open_jobs(reading.turn, list(asked.values()), ledger=ledger)
    for name, opened in zip(asked, running, strict=True):
        try:
            found[name] = str(opened) if isinstance(opened, Exception) else _standing(opened, decided[name])
        except SlackwaterError as error:  # a job that does not fit the current settings
            found[name] = str(error)
    return found


def _markets_of(
    reading: Reading, job: StoredJob, rows: Sequence[Mapping[str, Any]]
) -> tuple[FollowedMarket, ...]:
    """Return the market of a job; for a multi-market job its home market and all markets of its decisions."""
    newest = _market_of(reading, job, rows[-1])
    if not job.request.may_move:
        return (newest,)
    been = []
    if job.request.market is not None:
        at = find_market(reading.store, job.request.place, at=newest.at, settings=reading.settings)
        been = [replace(newest, source=at.source)]
    been += [
        FollowedMarket(market=Market.parse(str(row["market"])), source=str(row["source"]), at=newest.at)
        for row in rows
        if job.request.market != row["market"]
    ]
    return tuple(dict.fromkeys(been))


def _market_of(reading: Reading, job: StoredJob, newest: Mapping[str, Any]) -> FollowedMarket:
    """Return the market of a job with the time at which to read it.

    The time is the slot of the newest decision, the next slot if a later turn made no decision (the
    job may have finished), or the deadline if the newest turn is later.
    """
    slot = pd.Timestamp(newest["slot"])
    if reading.at is not None and reading.at >= job.deadline:
        slot = job.deadline
    elif reading.at is not None and reading.at > slot and newest["run"] != reading.run:
        slot += reading.step
    return FollowedMarket(
        market=Market.parse(str(job.request.market or newest["market"])),
        source=job.request.source or str(newest["source"]),
        at=min(slot, job.deadline),
    ).for_job(job.request)


def _standing(running: OpenJob, rows: Sequence[Mapping[str, Any]]) -> Standing:
    """Compute the state of a job; for a multi-market job, prices and availability are those of the market decided for each slot."""
    live, job = running.live, running.run
    slot, all_slots = min(live.slot, job.deadline_slots), job.deadline_slots
    reached = live.reached(slot)
    now, before = reached.progress, reached.earlier
    # slots without a view follow the completion of the work
    done = [before[k].done if k in before else job.workload for k in range(slot)] + [now.done]
    grid = pd.date_range(live.start, periods=all_slots, freq=live.step)
    tables = [
        (history.frame if history.availability_observed else history.frame.assign(available=np.nan)).reindex(
            grid
        )
        for history in running.histories
    ]
    # The market of each slot: the only market, else the market of the decision.
    at = dict.fromkeys(range(all_slots), 0)
    if running.request.may_move:
        at = {
            round((pd.Timestamp(row["slot"]) - live.start) / live.step): running.places.index(
                str(row["market"])
            )
            for row in rows
        }
    slots: list[dict[str, Any]] = []
    for k in range(min(slot + 1, all_slots)):
        ran = None if k >= slot else live.ran(k).allocation if k in before else NOTHING
        decided = live.decided[k].allocation if k in live.decided else None
        observed: Any = tables[at[k]].iloc[k] if k in at else {}
        slots.append(
            {
                "slot": grid[k],
                "share_done": done[k] / job.workload,
                "share_expected": k / all_slots,
                "price_usd": as_number(observed.get("price_usd")),
                "available": as_number(observed.get("available")),
                "decided_on_demand": None if decided is None else decided.on_demand,
                "decided_spot": None if decided is None else decided.spot,
                "held_on_demand": None if ran is None else ran.on_demand,
                "held_spot": None if ran is None else ran.spot,
            }
        )
    expected = min(1.0, slot / all_slots)
    ended = [k for k, work in enumerate(done) if is_finished(work, job.workload)]
    reported = running.progress_report
    return {
        "slots": slots,
        "deadline_slots": all_slots,
        "must_finish": job.must_finish,
        "share_done": min(1.0, now.done / job.workload),
        "share_expected": expected,
        "slots_ahead": (now.done / job.workload - expected) * all_slots,
        "finished_at": live.start + ended[0] * live.step if is_finished(now.done, job.workload) else None,
        "reported_at": None if reported is None else reported.reported_at,
    }
