"""The ``fill`` command; modules that compute are imported when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from slackwater.flows.command import Answer, Session, option, say


def fill(
    request: Annotated[
        Path,
        option(
            "Request file (TOML); `slackwater init --request` writes one with every key.", metavar="REQUEST"
        ),
    ],
    /,
    *,
    configurations: Annotated[
        Path | None,
        option(
            "Fitted configuration knowledge (default: fitted on DIR/finetune, else configurations.zip).",
            metavar="FILE",
        ),
    ] = None,
    policy: Annotated[
        str | None, option("Policy to plan with (default: the leader of the selection).")
    ] = None,
    plans: Annotated[int, option("Configurations to plan on forecasts.", least=1, most=24)] = 6,
    run: Annotated[bool, option("Replay the chosen job to its deadline and score it; needs --at.")] = False,
    out: Annotated[Path | None, option("File for the job.", metavar="JOB.toml")] = None,
    session: Session = Session(),
) -> Answer:
    """Fill a fine-tuning request: GPUs, batch and market for the least cost or time that meets its deadline.

    With --out the resulting job is written to a file.
    """
    from dataclasses import replace

    from slackwater.flows.clock import now
    from slackwater.flows.following import step_of
    from slackwater.flows.query import fleet_moment
    from slackwater.flows.requests.fill import (
        answer_of,
        configuration_model,
        run_filled,
        score_answer,
        write_job_file,
    )
    from slackwater.flows.requests.fill import fill as fill_request
    from slackwater.flows.requests.page import fill_report
    from slackwater.flows.turn.context import query_turn
    from slackwater.flows.turn.pool import deciding_policy
    from slackwater.optimization.policies.pool import policy_named
    from slackwater.optimization.requests.request import complete_request, read_tuning_request
    from slackwater.warehouse.errors import SettingsError

    if run and session.at is None:
        raise SettingsError(
            "--run without --at",
            expected="a time whose deadline lies inside the record",
            remedy="give --at TIME",
        )
    config = session.config
    step, completed_request = step_of(config), complete_request(read_tuning_request(request))
    model, source = configuration_model(configurations, session.data, seed=config.seed, say=say)
    with session.market_data() as store:
        at = fleet_moment(store, config, [], given=session.time, clock=now(), folder=session.data is not None)
        turn = query_turn(session, store, at, "fill")
        filled = fill_request(turn, completed_request, model, policy=policy, plans=plans)
        value = answer_of(replace(filled, source=source), step)
        if run:
            say("replay to the deadline")
            planner = policy_named(policy) if policy else deciding_policy(turn)[0]
            value["score"] = score_answer(run_filled(turn, filled, planner), filled, step)
    if out is not None:
        label = filled.winner.candidate.named
        notes = [f"Filled from {request.name}: {label}.", *(f"Assumed: {text}." for text in value["assumed"])]
        write_job_file(filled.job, out, notes=notes)
        value["job_file"] = str(out)
    if session.html is not None:
        value["html"] = str(session.html)
    return fill_report(value)
