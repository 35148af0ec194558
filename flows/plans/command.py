"""Commands ``forecast``, ``plan``, ``fleet plan`` and ``replay``; modules that compute are imported when called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from slackwater.flows.command import Answer, MarketName, Session, option, parsed_time
from slackwater.flows.ledger.fields import (
    OUTCOME,
    SIMULATED,
    assumed_notes,
    columns_of,
    decision_notes,
    fold_equal_outcomes,
    in_hindsight,
    stands_alone,
)
from slackwater.flows.show.blocks import Block, Column, Notes, Table
from slackwater.flows.show.formats import plural, price, significant, utc, whole

SHOWN_STEPS = (1, 2, 4, 8, 12, 24, 48)
#: Note on forecasts whose 80 % interval has no width.
FLAT = (
    "A range such as 4 to 4 means that no change was seen, perhaps because little was read, not that none will come. "
    "`plan` and `markets --for` state the probability of spot, in a new market from measured markets too."
)


def forecast(
    *,
    market: MarketName = None,
    model: Annotated[str | None, option("Forecaster to use (default: all in the settings).")] = None,
    horizon: Annotated[int | None, option("Forecast horizon in slots.", least=1, most=48)] = None,
    session: Session = Session(),
) -> Answer:
    """Issue and store forecasts of price and count for one market, or for all followed markets."""
    from slackwater.flows.plans.answers import forecast_row, issue_forecasts
    from slackwater.flows.turn.context import query_turn

    config = session.config
    models = [model] if model else list(dict.fromkeys([*config.models, config.planner]))
    with session.market_data(write=True) as store:
        at, own_end = session.moment(store)
        turn = query_turn(session, store, at, "forecast", own_end=own_end)
        result = issue_forecasts(turn, market, models, horizon=horizon)
    columns: dict[str, Column | str] = {"step": "slots ahead", "slot": Column(heading="slot", unit="UTC"),
               "price": Column(heading="price", unit="$", format=price), "price_80": "80 %", "count": "count",
               "count_80": "80 % of counts"}  # fmt: skip
    tables = [
        Table(
            f"{followed.key} by {issued.predictor} at {utc(issued.issued_at)}"
            + (f" (fallback: {issued.fallback})" if issued.fallback else "")
            + ("" if observed else "; availability not observed, so no count forecast"),
            _shown_steps(issued),
            columns if observed else {name: columns[name] for name in ("step", "slot", "price", "price_80")},
        )
        for followed, issued, observed in sorted(result, key=lambda own: own[1].predictor != config.planner)
    ]
    notes = [FLAT] if any(_is_flat(issued, observed) for _, issued, observed in result) else []
    value = {"forecasts": [forecast_row(*issued) for issued in result]}
    return Answer(title="Forecasts", value=value, blocks=tables, notes=notes)


def _is_flat(forecast: Any, observed: bool) -> bool:
    """Return whether the 80 % interval of the count, or without counts of the price, has no width at any step."""
    quantiles = forecast.count if observed else forecast.price
    return bool((quantiles[:, 1] == quantiles[:, 17]).all())


def _shown_steps(forecast: Any) -> list[dict[str, Any]]:
    """Return the median and 80 % interval of price and count at `SHOWN_STEPS`."""
    rows = []
    for step in SHOWN_STEPS:
        if step <= forecast.horizon:
            cost, count = forecast.price[step - 1], forecast.count[step - 1]
            rows.append(
                {
                    "step": step,
                    "slot": forecast.slots[step - 1],
                    "price": float(cost[9]),
                    "price_80": f"{significant(cost[1])} to {significant(cost[17])}",
                    "count": float(count[9]),
                    "count_80": f"{whole(count[1])} to {whole(count[17])}",
                }
            )
    return rows


def plan(
    job: Annotated[str, option("Job file, or name of a job in the warehouse.", metavar="JOB")],
    /,
    *,
    market: MarketName = None,
    policy: Annotated[
        str | None,
        option("Policy that decides (default: the policy of the turn, the leader of the leaderboard)."),
    ] = None,
    alone: Annotated[
        bool,
        option(
            "Plan the job alone, as if no other job needed spot (default: together with the other open jobs)."
        ),
    ] = False,
    held_spot: Annotated[
        int | None,
        option(
            "Spot instances running now, for this slot only (default: from reports and decisions).",
            metavar="N",
            least=0,
        ),
    ] = None,
    held_on_demand: Annotated[
        int | None,
        option(
            "On-demand instances running now, for this slot only; if only --held-spot is given, 0, and vice versa.",
            metavar="N",
            least=0,
        ),
    ] = None,
    session: Session = Session(),
) -> Answer:
    """Show the decision of one job for a slot, as a turn has issued or would issue it: what to run, the cost, and why.

    Nothing is stored. Jobs that are open together share the spot instances. Without --at the slot
    is the present slot if the job is open and the data are newer than the newest turn, else the
    slot of the newest turn.
    """
    from slackwater.flows.clock import now
    from slackwater.flows.ledger.decisions import document
    from slackwater.flows.ledger.headline import data_end_note, issued_note, late_start_note, over_since
    from slackwater.flows.plans.one_job import PlanQuery, plan_job
    from slackwater.flows.query import named_job, named_moment, newest_of, start_note
    from slackwater.flows.turn.context import query_turn
    from slackwater.optimization.job.definition import Allocation
    from slackwater.optimization.job.request import slot_note
    from slackwater.optimization.job.times import work_after

    clock, held = now(), None
    if held_spot is not None or held_on_demand is not None:
        held = Allocation(held_on_demand or 0, held_spot or 0)
    with session.market_data() as store:
        moment = named_moment(
            store, session.config, job, given=session.time, clock=clock, folder=session.data is not None
        )
        turn = query_turn(session, store, moment.at, "plan", own_end=moment.own_end, clock=clock)
        named = named_job(turn, job, market=market)
        planned = plan_job(turn, named, PlanQuery(policy=policy, alone=alone, held=held))
        begins = (
            ""
            if named.is_stored or session.time
            else start_note(turn, named.job.request, named.markets, clock=turn.clock)
        )
        seen = newest_of(turn, named.markets) or moment.at
        rounded = slot_note(named.job.request, named.job.step)
        rounded = f"The {rounded}." if rounded else ""
    over = over_since(planned.row, clock)
    size = planned.row["on_demand"] + planned.row["spot"]
    works_after = work_after(named.job.request, str(planned.row["market"]), size)
    late = late_start_note(planned.row, works_after, clock)
    row = planned.row | {"expired": bool(over)}
    issued = issued_note(row, named.name, is_stored=named.is_stored, is_of_turn=planned.is_of_turn)
    if over and moment.own_end and not planned.is_of_turn:
        over = data_end_note(seen, clock)
    notes = [issued, named.proposal, begins, rounded]
    answer = plan_answer(row, notes, planned.notes, clock, first=late, over=over)
    return replace(answer, value=document(row))


def plan_answer(
    row: Mapping[str, Any],
    told: Sequence[str],
    notes: Sequence[str],
    clock: datetime,
    *,
    over: str,
    first: str = "",
) -> Answer:
    """Return the answer of ``plan``: what to run, until when and at what cost, then the reason and the details.

    ``over``: a note that the slot has ended, shown first; ``first``: a note shown after what to run.
    """
    from slackwater.flows.ledger.headline import details, headline, outlook

    head = headline(row, clock)
    if row.get("shortfall"):
        best = "Best effort: " if row["on_demand"] or row["spot"] else ""
        head = f"Warning: job {row['job']} {row['shortfall']}. {best}{head}"
    if row.get("budget_note"):
        head = f"Warning: job {row['job']}: {row['budget_note']}. {head}"
    stale = [f"STALE DATA: {row['stale']}"] if row.get("stale") else []
    items = [
        *(f"NO ON-DEMAND PRICE: {text}" for text in decision_notes([row], "on_demand_note")),
        *notes,
        *(f"SYNTHETIC: {text}" for text in assumed_notes([row])),
    ]
    blocks: list[Block] = [
        *([f"At that time: {head}"] if over else []),
        *([first] if first else []),
        *outlook(row),
        *([Notes(stale)] if stale else []),
        *([] if row.get("worth_note") else [f"Why: {row['reason']}"]),  # the note is the reason
        *(text for text in told if text),
        *([Notes(items)] if items else []),
        Table("Details", details(row), {"what": "field", "value": "value"}),
    ]
    return Answer(title=f"Decision for {utc(row['slot'])}", value=row, about=over or head, blocks=blocks)


def fleet_plan(
    *,
    jobs: Annotated[
        list[Path] | None,
        option("Job file to plan with the open jobs; may be repeated.", name="--job", metavar="FILE"),
    ] = None,
    market: MarketName = None,
    session: Session = Session(),
) -> Answer:
    """Show the decisions of all open jobs in the coming slot, as `slackwater run` issues them. Nothing is stored."""
    from slackwater.flows.clock import now
    from slackwater.flows.ledger.headline import over_since
    from slackwater.flows.plans.decisions import fleet_answer
    from slackwater.flows.query import fleet_moment
    from slackwater.flows.turn.context import query_turn
    from slackwater.flows.turn.report.command import decided_blocks
    from slackwater.optimization.job.request import read_request

    config, clock = session.config, now()
    requests = [read_request(path) for path in jobs or []]
    if market is not None:
        requests = [request.model_copy(update={"market": market}) for request in requests]
    with session.market_data() as store:
        folder = session.data is not None
        at = fleet_moment(store, config, requests, given=session.time, clock=clock, folder=folder)
        turn = query_turn(session, store, at, "fleet")
        value = fleet_answer(turn, requests)
    rows = value["decisions"]
    title = f"{plural(len(rows), 'job')} for the slot of {utc(value['slot'])}"
    over = over_since(rows[0], clock)
    blocks: list[Block] = [
        *([over] if over else []),
        *decided_blocks(rows),
        *([Notes(value["notes"])] if value["notes"] else []),
    ]
    return Answer(title=title, value=value, blocks=blocks)


def replay(
    job: Annotated[Path, option("Job file (TOML).", metavar="FILE")],
    *,
    market: Annotated[
        str | None,
        option("Market, optionally with @source; for a multi-market job its home market.", metavar="MARKET"),
    ] = None,
    markets: Annotated[
        str | None,
        option("Markets of a multi-market job: comma-separated names or shell patterns.", metavar="PATTERNS"),
    ] = None,
    policy: Annotated[
        str | None,
        option(
            'For example UP (the default), OD-only or "AHAP(5,1,0.9)"; "all" for all policies of the pool. '
            "For a multi-market job: MeanField (the default), Greedy, ..., all."
        ),
    ] = None,
    start: Annotated[
        str | None,
        option("First slot (default: the job ends at the end of the record).", name="--from", metavar="TIME"),
    ] = None,
    model: Annotated[
        str | None,
        option(
            'Forecaster for the plans; "perfect" for the actual values (an upper bound, not available in practice).'
        ),
    ] = None,
    session: Session = Session(),
) -> Answer:
    """Simulate a policy on recorded market data and compare it with the hindsight optimum."""
    from slackwater.flows.places import propose_markets
    from slackwater.flows.plans.answers import replay_answer
    from slackwater.flows.schemas.forms import REPLAY
    from slackwater.flows.turn.context import query_turn
    from slackwater.optimization.job.request import may_move_among, read_request, stays_in
    from slackwater.optimization.policies.pool import is_policy

    request, first = read_request(job), parsed_time(start, "--from")
    if markets is not None:
        request = may_move_among(request, tuple(text.strip() for text in markets.split(",")))
    elif market is not None and policy is not None and is_policy(policy):
        request = stays_in(
            request
        )  # a market and a single-market policy were given: replay in that market only
    note_of_choice = ""
    with session.market_data() as store:
        at, _ = session.moment(store)
        turn = query_turn(session, store, at, "replay", own_end=True)
        if market is None and request.names_no_market:
            request, note_of_choice = propose_markets(turn, request)
        by = policy or ("MeanField" if request.may_move else "UP")
        rows: list[Any] = replay_answer(turn, request, market=market, policy=by, start=first, model=model)
    best: Any = rows[0]
    short = [{key: value for key, value in row.items() if key != "allocations"} for row in rows]
    value = {"schema": REPLAY, **(best if by != "all" else {"replays": short})}
    where = f"{len(best['markets'])} markets" if "markets" in best else best["market"]
    title = f"{best['job']} on {where} from {utc(best['from'])}, {plural(best['deadline_slots'], 'slot')}"
    return Answer(
        title=title,
        value=value,
        blocks=replay_blocks(title, rows) + ([note_of_choice] if note_of_choice else []),
    )


REPLAY_ROWS = 20  # Rows of a replay shown on a terminal; baselines are always among them


def _gaps_words(row: Mapping[str, Any]) -> list[str]:
    """Return a sentence on the slots of a replayed job without an observation, none if there is no such slot."""
    markets = len(row.get("markets", [row["market"]]))
    if not row["gaps"]:
        return []
    where = "" if markets == 1 else f" of {plural(markets, 'market')}"
    return [
        f"No observation in {row['gaps']} of {plural(markets * row['deadline_slots'], 'slot')}{where}, such as those before "
        "the record begins: no spot could run there."
    ]


def replay_blocks(title: str, rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    """Return the outcomes of a replay with the hindsight optimum, equal decisions in one row, and the slots of one policy."""
    best = rows[0]
    gpus = best["gpus_per_instance"]
    facts = [
        *fold_equal_outcomes(rows),
        in_hindsight(best["hindsight"]["cost_usd"], best["on_demand_only_usd"]),
    ]
    from slackwater.flows.ledger.headline import SPOT_NEVER_LOST

    blocks: list[Block] = [
        *_gaps_words(best),
        Table(title, facts, columns_of(OUTCOME, rows=facts), most=REPLAY_ROWS, marked=stands_alone),
        f"work: {best['work']}" + (f"; {plural(gpus, 'GPU')} per instance" if gpus else ""),
        SIMULATED[best["model"]],
        *([SPOT_NEVER_LOST] if any(row["on_time"] is None for row in rows) else []),
        *(f"Assumed: {text}" for text in best["synthetic"]),
    ]
    if len(rows) == 1:
        slots: dict[str, Column | str] = {
            "slot": Column(heading="slot", unit="UTC"), **({"market": "market"} if "moves" in best else {}),
            "on_demand": "on-demand", "spot": "spot", "price_usd": Column(heading="price", unit="$", format=price),
            "available": "available",
        }  # fmt: skip
        blocks.append(Table("Slots", best["allocations"], slots))
    return blocks
