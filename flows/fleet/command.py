"""``fleet plan``. What computes is loaded when the command is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from flows.command import Answer, MarketName, Session, counted, option, say
from flows.show.blocks import Block, Notes, Table
from flows.show.formats import utc

JOB_COLUMNS = {
    "job": "job", "market": "market", "on_demand": "on-demand", "spot": "spot", "gpus": "GPUs", "moves": "moves",
    "priority": "priority", "team": "team", "pays_usd": "pays $", "utility_usd": "utility $", "one_by_one_usd": "one by one $",
}  # fmt: skip
MARKET_COLUMNS = {
    "market": "market", "spot_usd_per_hour": "spot $/h", "on_demand_usd_per_hour": "on-demand $/h", "available": "there",
    "used": "used", "wanted_alone": "wanted by jobs alone", "shadow_usd_per_hour": "shadow price $/h",
}  # fmt: skip
TEAM_COLUMNS = {"team": "team", "left_usd": "left $", "pays_usd": "pays $", "shadow": "one more $ is worth"}
COMPARED_COLUMNS = {
    "planned": "planned",
    "utility_usd": "priority x utility $",
    "gain_usd": "together gains $",
}


def plan(
    *,
    teams: Annotated[
        Path | None, option("Budgets, priorities, allowed markets: docs/many-jobs.md.", metavar="TEAMS.toml")
    ] = None,
    jobs: Annotated[
        list[Path] | None,
        option("Job file to plan beside the open jobs; may be repeated.", name="--job", metavar="FILE"),
    ] = None,
    market: MarketName = None,
    window: Annotated[int, option("Slots planned, this one included.", least=1, most=24)] = 6,
    session: Session = Session(),
) -> Answer:
    """The decisions of all open jobs in the coming slot, as `slackwater run` issues them, and a joint plan beside them.

    The joint plan looks some slots ahead, knows teams and caps and lets jobs move. It advises: nothing is stored.
    """
    from flows.clock import now
    from flows.fleet.plan import fleet_answer, read_terms, request_on
    from flows.ledger.headline import answers, over_since
    from flows.turn.command import decision_blocks
    from flows.turn.context import Turn
    from flows.turn.planning import fleet_moment

    config, terms = session.config, read_terms(teams)
    requests = [request_on(path, market) for path in jobs or []]
    with session.market_data() as store:
        folder = session.data is not None
        clock = now()
        at = fleet_moment(store, config, requests, given=session.time, clock=clock, folder=folder)
        turn = Turn(store=store, at=at, settings=config, run_id="fleet", say=say, fan=counted)
        value = fleet_answer(turn, terms, requests, window=window)
    title = f"{len(value['decisions'])} jobs together for the slot of {utc(value['slot'])}"
    over = over_since(value["decisions"][0], clock) if value["decisions"] else ""
    blocks: list[Block] = [
        *([over] if over else []),
        *([Notes(found)] if (found := answers(value["decisions"])) else []),
        *decision_blocks("Decisions of that slot", value["decisions"]),
        Table("The joint plan beside them", value["jobs"], JOB_COLUMNS),
        Table("Markets in that slot", value["markets"], MARKET_COLUMNS),
    ]
    if value["teams"]:
        blocks.append(Table("Teams", value["teams"], TEAM_COLUMNS))
    blocks += [
        Table("What planning together gains", value["compared"], COMPARED_COLUMNS),
        Notes(value["notes"]),
    ]
    return Answer(title=title, value=value, blocks=blocks)
