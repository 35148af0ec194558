"""The ``slackwater`` command: the one list of commands. Each is a function of its options that returns an `Answer`."""

from __future__ import annotations

import gc
import sys
from typing import Final

from flows.command import Program, open_streams

#: Words -> the function, imported when it is called; overviews show the commands in this order.
COMMANDS: Final = {
    "run": "flows.engine.command:run",
    "plan": "flows.turn.command:plan",
    "forecast": "flows.turn.command:forecast",
    "replay": "flows.turn.command:replay",
    "leaderboard": "flows.turn.command:leaderboard",
    "report": "flows.turn.command:report",
    "job add": "flows.jobs.command:add",
    "job change": "flows.jobs.command:change",
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
    "job": "Add, change, list and show jobs, and report what they did.",
    "feeds": "List the live feeds of the settings with their last fetch; fetch one by hand.",
    "fleet": "Plan jobs that compete for the same counts together.",
    "experiment": "Repeat an experiment on a folder of measured prices and counts: train on the past half, test on the later one.",
}
#: A call of each command to copy, shown below its help.
EXAMPLES: Final = {
    "run": "slackwater run --data data --job job.toml",
    "plan": "slackwater plan job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g",
    "forecast": "slackwater forecast --market gcp/us-central1/us-central1-a/a3-highgpu-1g --json",
    "replay": "slackwater replay --job job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g --policy all",
    "leaderboard": "slackwater leaderboard",
    "report": "slackwater report --at 2026-11-20T14:30Z --html turn.html",
    "job add": "slackwater job add job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g",
    "job change": "slackwater job change llama-8b-lora --deadline 2026-11-21T18:00Z",
    "job list": "slackwater job list",
    "job show": "slackwater job show llama-8b-lora",
    "job report": "slackwater job report llama-8b-lora --progress-share 0.4 --on-demand 0 --spot 6",
    "markets": "slackwater markets",
    "ingest": "slackwater ingest tabular data",
    "rejected": "slackwater rejected --source aws-spot",
    "feeds": "slackwater feeds",
    "feeds fetch": "slackwater feeds fetch vast",
    "accuracy": "slackwater accuracy --data data --market 'gcp/*' --html accuracy.html",
    "backfill": "slackwater backfill --from 2026-11-19 --to 2026-11-20 --dry-run",
    "status": "slackwater status",
    "ui": "slackwater ui --port 0",
    "serve": "slackwater serve --every 1h",
    "fill": "slackwater fill request.toml",
    "fit-configurations": "slackwater fit-configurations runs.csv",
    "rent": "slackwater rent types.toml --budget 100",
    "fleet plan": "slackwater fleet plan",
    "export": "slackwater export folder",
    "import": "slackwater import folder --db other.duckdb",
    "compact": "slackwater compact",
    "publish": "slackwater publish shared --form parquet",
    "schema": "slackwater schema decision",
    "init": "slackwater init",
    "experiment pool": "slackwater experiment pool --data data",
    "experiment error": "slackwater experiment error --data data",
    "experiment selection": "slackwater experiment selection --data data",
    "experiment cant-be-late": "slackwater experiment cant-be-late --data data",
    "experiment predictors": "slackwater experiment predictors --data data",
    "experiment probing": "slackwater experiment probing --data data",
    "experiment fleet": "slackwater experiment fleet --data data",
    "experiment cluster": "slackwater experiment cluster --data data",
    "experiment renting": "slackwater experiment renting --data data",
    "experiment advice": "slackwater experiment advice --data data",
    "experiment markets": "slackwater experiment markets --data data",
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
    examples=EXAMPLES,
)


def main() -> None:
    """Entry point: run one command and end with its exit code."""
    # Libraries make hundreds of thousands of objects that stay: looking for garbage after every 700 is a tenth of a command's time.
    gc.set_threshold(50_000, 20, 20)
    open_streams()
    sys.exit(PROGRAM.run(sys.argv[1:]))


if __name__ == "__main__":
    main()
