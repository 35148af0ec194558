"""The command ``backtest``; the code behind it is imported when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from slackwater.flows.command import (
    Answer,
    MarketName,
    Session,
    option,
    parsed_duration,
    parsed_time,
    progress,
)
from slackwater.flows.ledger.fields import HINDSIGHT, SIMULATED, in_hindsight
from slackwater.flows.ledger.headline import SPOT_NEVER_LOST, compared_words
from slackwater.flows.show.blocks import Block, Column, Figure, Fold, Notes, Table
from slackwater.flows.show.charts import Axis, lines
from slackwater.flows.show.formats import percent, plural, usd, utc
from slackwater.warehouse.amounts import duration

if TYPE_CHECKING:
    from slackwater.flows.backtest.run import Backtest, Summary


def backtest(
    job: Annotated[str, option("A job file, or the name of a stored job.", metavar="JOB")],
    *,
    start: Annotated[
        str | None, option("First start (default: 30 days before the last).", name="--from", metavar="TIME")
    ] = None,
    end: Annotated[
        str | None,
        option("Last start (default: so that the job ends with the record).", name="--to", metavar="TIME"),
    ] = None,
    every: Annotated[str, option("Time between two starts.", metavar="DURATION")] = "6h",
    policy: Annotated[
        list[str] | None,
        option(
            "A policy to compare, or all; may be repeated (default: the policy that decides now, MSU, UP and "
            "OD-only; of a job that may run in several markets, all policies for those).",
            metavar="POLICY",
        ),
    ] = None,
    market: MarketName = None,
    session: Session = Session(),
) -> Answer:
    """Simulate a job at many start times of the stored record, with several policies, and compare cost and lateness.

    Only the length of a fixed deadline is used. Nothing is stored.
    """
    from pathlib import Path

    from slackwater.flows.backtest.run import backtest as simulated
    from slackwater.flows.backtest.run import length_of
    from slackwater.flows.clock import now
    from slackwater.flows.ledger.jobs import find_job
    from slackwater.flows.turn.context import query_turn
    from slackwater.optimization.job.request import read_request
    from slackwater.warehouse.documents import names_file

    spacing = parsed_duration(every, "--every")
    first, last = parsed_time(start, "--from"), parsed_time(end, "--to")
    request = read_request(Path(job)) if names_file(job) else None
    with session.market_data() as store:
        at, own_end = session.moment(store)
        turn = query_turn(session, store, at, "backtest", own_end=own_end)
        if request is None:
            request = find_job(store, job, known_at=turn.terms_at).request
        with progress("backtest") as tell:
            found = simulated(
                turn, request, length=length_of(request, now()), market=market, first=first, last=last,
                every=spacing, policies=policy or (), progress=tell,
            )  # fmt: skip
    return backtest_answer(found)


def backtest_answer(found: Backtest) -> Answer:
    """Return the comparison as text, a page with a chart, and a JSON object."""
    from slackwater.flows.backtest.run import summaries
    from slackwater.flows.schemas.forms import BACKTEST

    rows = summaries(found)
    alone = [run.on_demand_only_usd for run in found.runs if run.policy == found.policies[0]]
    best = [run.hindsight_usd for run in found.runs if run.policy == found.policies[0]]
    where = found.markets[0] if len(found.markets) == 1 else plural(len(found.markets), "market")
    starts = sorted({run.start for run in found.runs})
    known = [usd for usd in alone if usd is not None]
    mean_alone = sum(known) / len(known) if len(known) == len(alone) else None
    mean_best = sum(best) / len(best)
    value = {
        "schema": BACKTEST,
        "job": found.job,
        "gpus_per_instance": found.gpus_per_instance,
        "work": found.work,
        "markets": list(found.markets),
        "source": found.source,
        "model": found.model,
        "forecaster": found.forecaster,
        "from": starts[0],
        "to": starts[-1],
        "every_minutes": found.every.total_seconds() / 60.0,
        "step_minutes": found.step.total_seconds() / 60.0,
        "deadline_slots": found.deadline_slots,
        "starts": len(starts),
        "left_out": found.left_out,
        "gaps": found.gaps,
        "blocks": found.blocks,
        "leader": found.leader,
        "on_demand_only_usd": mean_alone,
        "hindsight_usd": mean_best,
        "policies": [asdict(row) for row in rows],
        "runs": [asdict(run) for run in found.runs],
        "synthetic": list(found.assumptions),
    }
    title = f"Backtest of {found.job} on {where}"
    blocks: list[Block] = [
        *_headline(found, rows, starts),
        _table(rows, mean_best, mean_alone if all(best) else None),
        Notes(_notes(found)),
        _figure(found),
        Fold("Every start", [_runs_table(found)]),
    ]
    return Answer(title=title, value=value, blocks=blocks)


def _headline(found: Backtest, rows: Sequence[Summary], starts: Sequence[Any]) -> list[Block]:
    """Return the result of the policy that decides now, or of the best policy, in a few sentences."""
    own = next((row for row in rows if row.policy == found.leader), rows[0])
    length = duration(found.deadline_slots * found.step)
    saved = "no on-demand price known to compare with"
    if own.saved_share is not None:
        saved = compared_words(own.saved_share)
    elif own.given_up == own.starts:
        saved = "no saving, as no job was finished"
    if own.saved_low is not None and own.saved_high is not None:
        low, high = own.saved_low, own.saved_high
        if (
            own.saved_share is not None and own.saved_share < 0
        ):  # as the words before it, of how much more is paid
            low, high = -high, -low
        saved += f" (95 % interval {percent(low)} to {percent(high)})"
    if own.given_up and own.saved_share is not None:
        saved += f" in the {own.starts - own.given_up} of {own.starts} that are finished"
    late = "never late" if not own.late else f"late {own.late} of {own.starts} times"
    cost = f"${usd(own.mean_cost_usd)} on average"
    if own.late is None:
        cost += " if spot is never lost"
        late = "how often it is late is unknown, availability not observed"
    if own.given_up:
        late += f", given up {own.given_up} of {own.starts} times"
    if own.mean_utility_usd is not None:
        late += f"; value less cost {usd(own.mean_utility_usd)} USD on average"
    gpus = found.gpus_per_instance
    return [
        f"{own.policy}: {cost}, {saved}; worst ${usd(own.worst_cost_usd)}; {late}.",
        f"Work: {found.work}" + (f"; {plural(gpus, 'GPU')} an instance." if gpus else "."),
        f"{plural(own.starts, 'start')} from {utc(starts[0])} to {utc(starts[-1])}, one every {duration(found.every)}, "
        f"{length} to each deadline.",
    ]


def _table(rows: Sequence[Summary], best: float, alone: float | None) -> Table:
    """Return the summaries and the mean cost of the optimum; ``alone`` None: the optimum has no saving."""
    shown: list[dict[str, Any]] = [asdict(row) | {"interval": _interval(row)} for row in rows]
    shown.append(in_hindsight(best, alone) | {"mean_cost_usd": best})
    columns: dict[str, Column | str] = {
        "policy": "policy",
        "mean_cost_usd": Column(heading="mean cost", unit="$", format=usd),
        "worst_cost_usd": Column(heading="worst", unit="$", format=usd),
        "late": Column(heading="late", words="Starts that missed the deadline."),
        "given_up": Column(
            heading="given up", words="Late starts whose job was abandoned: they have no saving."
        ),
        "saved_share": Column(
            heading="saved",
            format=percent,
            words="Share of the cost of on-demand only, over the finished jobs.",
        ),
        "mean_utility_usd": Column(
            heading="value less cost", unit="$", format=usd, words="Mean over all starts."
        ),
        "interval": Column(heading="95 % interval", words="Of the share saved, over blocks of starts."),
        "spot_share": Column(
            heading="on spot",
            format=percent,
            words="Share of the instances that were spot, mean over starts.",
        ),
    }
    if not any(row.given_up for row in rows):
        columns.pop("given_up")
    if rows[0].mean_utility_usd is None:
        columns.pop("mean_utility_usd")
    order = "the lowest mean cost first"
    if rows[0].mean_utility_usd is not None:
        order = "the highest value less cost first"
    elif len({row.late for row in rows}) > 1:
        order = "the fewest late starts first, then the lowest mean cost"
    return Table(f"Policies, {order}", shown, columns, marked=lambda row: row["policy"] == HINDSIGHT)


def _interval(row: Summary) -> str | None:
    if row.saved_low is None or row.saved_high is None:
        return None
    return f"{percent(row.saved_low)} to {percent(row.saved_high)}"


def _notes(found: Backtest) -> list[str]:
    from slackwater.forecasting.accuracy.intervals import LEAST_BLOCKS

    notes = [
        f"The interval takes starts within {duration(found.block)} of each other as one block: {plural(found.blocks, 'block')}"
        + (f". With fewer than {LEAST_BLOCKS} there is no interval." if found.blocks < LEAST_BLOCKS else "."),
        f"{SIMULATED[found.model]} A slot is {duration(found.step)}.",
        f"The {HINDSIGHT} knows the market in advance and pays for whole slots; no policy can know it.",
    ]
    if any(run.on_time is None for run in found.runs):
        notes.insert(0, SPOT_NEVER_LOST)
    if found.left_out:
        notes.append(
            f"{plural(found.left_out, 'start')} left out: not all of the job's slots are in the record."
        )
    if found.gaps:
        notes.append(f"{found.gaps:,} of {found.slots:,} slots have no observation; no spot is used there.")
    return [*notes, *(f"Assumed: {text}" for text in found.assumptions), *filter(None, [found.proposal])]


def _figure(found: Backtest) -> Figure:
    names = list(found.policies)

    def draw() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"x": run.start, "y": run.cost_usd, "series": run.policy} for run in found.runs
        ]
        if "OD-only" not in names:
            first = names[0]
            rows += [
                {"x": run.start, "y": run.on_demand_only_usd, "series": "on-demand only"}
                for run in found.runs
                if run.policy == first and run.on_demand_only_usd is not None
            ]
        series = list(dict.fromkeys(str(row["series"]) for row in rows))
        return [
            lines(
                rows, series, x=Axis(title="start, UTC"), y=Axis(title="cost, $", low=0.0), time=True,
                bold=found.leader, points=len(found.runs) < 400,
            )
        ]  # fmt: skip

    return Figure(
        specs=draw, title="Cost by start time", label=f"Cost of {found.job} by start time, a line a policy"
    )


def _runs_table(found: Backtest) -> Table:
    columns: dict[str, Column | str] = {
        "start": Column(heading="start", format=utc),
        "policy": "policy",
        "cost_usd": Column(heading="cost", unit="$", format=usd),
        "on_time": "on time",
        "finish": Column(heading="finish", format=utc),
        "on_demand_only_usd": Column(heading="on-demand only", unit="$", format=usd),
        "hindsight_usd": Column(heading=HINDSIGHT, unit="$", format=usd),
    }
    return Table("", [asdict(run) for run in found.runs], columns, sortable=True)
