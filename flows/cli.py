"""The ``slackwater`` command: the one list of commands. Each is a function of its options that returns an `Answer`."""

from __future__ import annotations

import sys
from typing import Final

from flows.command import Program

#: Words -> the function, imported when it is called; overviews show the commands in this order.
COMMANDS: Final = {
    "run": "flows.engine.command:run",
    "plan": "flows.turn.command:plan",
    "forecast": "flows.turn.command:forecast",
    "replay": "flows.turn.command:replay",
    "leaderboard": "flows.turn.command:leaderboard",
    "report": "flows.turn.command:report",
    "job add": "flows.jobs.command:add",
    "job list": "flows.jobs.command:list_",
    "job show": "flows.jobs.command:show",
    "job report": "flows.jobs.command:report",
    "markets": "flows.exchange:markets",
    "ingest": "flows.exchange:ingest",
    "rejected": "flows.exchange:rejected",
    "feeds": "flows.feeds.command:feeds",
    "feeds fetch": "flows.feeds.command:fetch",
    "accuracy": "flows.accuracy.command:accuracy",
    "backfill": "flows.backfill.command:backfill",
    "status": "flows.monitoring.command:status",
    "ui": "flows.ui.command:ui",
    "serve": "flows.engine.command:serve",
    "fill": "flows.requests.command:fill",
    "fit-configurations": "flows.configurations.command:fit_configurations",
    "rent": "flows.renting.command:rent",
    "fleet plan": "flows.fleet.command:plan",
    "export": "flows.exchange:export",
    "import": "flows.exchange:import_",
    "compact": "flows.exchange:compact",
    "publish": "flows.exchange:publish",
    "schema": "flows.schemas.command:schema",
    "init": "flows.schemas.command:init",
    "experiment pool": "flows.experiments.command:pool",
    "experiment error": "flows.experiments.command:error",
    "experiment selection": "flows.experiments.command:selection",
    "experiment cant-be-late": "flows.experiments.command:cant_be_late",
    "experiment predictors": "flows.experiments.command:predictors",
    "experiment probing": "flows.experiments.command:probing",
    "experiment fleet": "flows.experiments.command:fleet",
    "experiment cluster": "flows.experiments.command:cluster",
    "experiment renting": "flows.experiments.command:renting",
    "experiment advice": "flows.experiments.command:advice",
    "experiment markets": "flows.experiments.command:markets",
}
#: First words of commands of two.
GROUPS: Final = {
    "job": "Add, list and show jobs, and report what they did.",
    "feeds": "List the live feeds of the settings with their last fetch; fetch one by hand.",
    "fleet": "Plan jobs that compete for the same counts together.",
    "experiment": "Repeat an experiment on a folder of measured prices and counts: train on the past half, test on the later one.",
}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # here, since it takes a while to load

    try:
        return version("slackwater")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


PROGRAM: Final = Program(
    name="slackwater",
    help="How many spot and on-demand GPU instances to hold in the next slot, so that a job meets its deadline at the least cost.",
    version=_version,
    commands=COMMANDS,
    groups=GROUPS,
)


def main() -> None:
    """Entry point: run one command and end with its exit code."""
    sys.exit(PROGRAM.run(sys.argv[1:]))


if __name__ == "__main__":
    main()
