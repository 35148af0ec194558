"""``fleet plan``. The command loads what computes when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from slackwater.flows.command import Answer, MarketName, Session, option
from slackwater.flows.show.blocks import Block, Notes
from slackwater.flows.show.formats import utc


def plan(
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
    from slackwater.flows.fleet.plan import fleet_answer, request_on
    from slackwater.flows.ledger.headline import over_since
    from slackwater.flows.plans.query import fleet_moment
    from slackwater.flows.turn.context import query_turn
    from slackwater.flows.turn.report.command import decided_blocks

    config = session.config
    requests = [request_on(path, market) for path in jobs or []]
    with session.market_data() as store:
        folder = session.data is not None
        clock = now()
        at = fleet_moment(store, config, requests, given=session.time, clock=clock, folder=folder)
        turn = query_turn(session, store, at, "fleet")
        value = fleet_answer(turn, requests)
    rows = value["decisions"]
    title = f"{len(rows)} jobs for the slot of {utc(value['slot'])}"
    over = over_since(rows[0], clock)
    blocks: list[Block] = [
        *([over] if over else []),
        *decided_blocks(rows),
        *([Notes(value["notes"])] if value["notes"] else []),
    ]
    return Answer(title=title, value=value, blocks=blocks)
