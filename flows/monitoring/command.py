"""The command ``status``, which needs no engine; its modules are imported when it runs."""

from __future__ import annotations

from typing import Annotated

from slackwater.flows.command import Answer, MarketName, Query, option, parsed_time


def status(
    *,
    at: Annotated[
        str | None,
        option(
            "Time of the status, or `now` (default: now, or the newest turn if the warehouse has only historical data).",
            metavar="TIME",
        ),
    ] = None,
    since: Annotated[
        str | None,
        option("First slot shown (default: 3 days earlier, but not before the first turn).", metavar="TIME"),
    ] = None,
    until: Annotated[str | None, option("Last slot shown (default: the newest).", metavar="TIME")] = None,
    market: MarketName = None,
    session: Query = Query(),
) -> Answer:
    """Show what is done, missing, failed or stale, how fresh every source is, and the alarms. Nothing is stored.

    Exit code: 0 all well, 3 something is missing or failed, 4 an alarm is active, 5 both (2: a user's error).
    """
    from slackwater.flows.clock import now
    from slackwater.flows.following import present_note, present_of
    from slackwater.flows.monitoring.status import check_has_turn, status_answer, status_of

    config, clock, note = session.config, now(), ""
    when = clock if at == "now" else parsed_time(at, "--at")
    first, last = parsed_time(since, "--since"), parsed_time(until, "--until")
    with session.reading() as store:
        if when is None:
            check_has_turn(store)
            when = present_of(store, config, clock=clock)
            note = present_note(when, clock)
        found = status_of(store, config, at=when, since=first, until=last, market=market or "", note=note)
    return status_answer(found)
