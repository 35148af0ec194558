"""The ``slackwater`` command line: the list of all commands, each a function of its options that returns an `Answer`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Final

from slackwater.flows.command import Command, Program, open_streams

#: Command words -> function and example arguments; overviews list the commands in this order.
COMMANDS: Final = {
    "run": Command("slackwater.flows.engine.command:run", "--data data --job job.toml"),
    "plan": Command(
        "slackwater.flows.turn.command:plan", "job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g"
    ),
    "forecast": Command(
        "slackwater.flows.turn.command:forecast",
        "--market gcp/us-central1/us-central1-a/a3-highgpu-1g --json",
    ),
    "replay": Command(
        "slackwater.flows.turn.command:replay",
        "--job job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g --policy all",
    ),
    "backtest": Command(
        "slackwater.flows.backtest.command:backtest",
        "--job job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g --every 6h --html backtest.html",
    ),
    "leaderboard": Command("slackwater.flows.turn.command:leaderboard"),
    "report": Command("slackwater.flows.turn.command:report", "--at 2026-11-20T14:30Z --html turn.html"),
    "job add": Command(
        "slackwater.flows.jobs.command:add", "job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g"
    ),
    "job change": Command(
        "slackwater.flows.jobs.command:change", "llama-8b-lora --deadline 2026-11-21T18:00Z"
    ),
    "job list": Command("slackwater.flows.jobs.command:list_"),
    "job show": Command("slackwater.flows.jobs.command:show", "llama-8b-lora"),
    "job report": Command(
        "slackwater.flows.jobs.command:report", "llama-8b-lora --progress-share 0.4 --on-demand 0 --spot 6"
    ),
    "bill": Command("slackwater.flows.jobs.bill:bill", "llama-8b-lora"),
    "markets": Command("slackwater.flows.exchange:markets"),
    "catalogue": Command("slackwater.flows.catalogue:catalogue", "aws H100 us-east-1"),
    "ingest": Command("slackwater.flows.exchange:ingest", "tabular data"),
    "rejected": Command("slackwater.flows.exchange:rejected", "--source aws-spot"),
    "feeds": Command("slackwater.flows.feeds.command:feeds"),
    "feeds fetch": Command("slackwater.flows.feeds.command:fetch", "vast"),
    "accuracy": Command(
        "slackwater.flows.accuracy.command:accuracy", "--data data --market 'gcp/*' --html accuracy.html"
    ),
    "backfill": Command(
        "slackwater.flows.backfill.command:backfill", "--from 2026-11-19 --to 2026-11-20 --dry-run"
    ),
    "status": Command("slackwater.flows.monitoring.command:status"),
    "ui": Command("slackwater.flows.ui.command:ui", "--port 0"),
    "serve": Command("slackwater.flows.engine.command:serve", "--every 1h"),
    "fill": Command("slackwater.flows.requests.command:fill", "request.toml"),
    "fit-configurations": Command("slackwater.flows.configurations.command:fit_configurations", "runs.csv"),
    "rent": Command("slackwater.flows.renting.command:rent", "types.toml --budget 100"),
    "fleet plan": Command("slackwater.flows.fleet.command:plan"),
    "export": Command("slackwater.flows.exchange:export", "folder"),
    "import": Command("slackwater.flows.exchange:import_", "folder --db other.duckdb"),
    "compact": Command("slackwater.flows.exchange:compact"),
    "publish": Command("slackwater.flows.exchange:publish", "shared --form parquet"),
    "schema": Command("slackwater.flows.schemas.command:schema", "decision"),
    "init": Command("slackwater.flows.schemas.command:init"),
}
#: Command groups: first word of the two-word commands -> help text.
GROUPS: Final = {
    "job": "Add, change, list and show jobs, and report what they did.",
    "feeds": "List the live feeds of the settings with their last fetch; fetch one by hand.",
    "fleet": "Plan jobs that compete for the same instances together.",
}
#: Commands of the studies, which a clone has and a wheel does not.
STUDIES: Final = {
    "experiment pool": Command("slackwater.studies.experiments.command:pool", "--data data"),
    "experiment error": Command("slackwater.studies.experiments.command:error", "--data data"),
    "experiment selection": Command("slackwater.studies.experiments.command:selection", "--data data"),
    "experiment cant-be-late": Command("slackwater.studies.experiments.command:cant_be_late", "--data data"),
    "experiment predictors": Command("slackwater.studies.experiments.command:predictors", "--data data"),
    "experiment cluster": Command("slackwater.studies.experiments.command:cluster", "--data data"),
    "experiment renting": Command("slackwater.studies.experiments.command:renting", "--data data"),
    "experiment advice": Command("slackwater.studies.experiments.command:advice", "--data data"),
    "experiment markets": Command("slackwater.studies.experiments.command:markets", "--data data"),
}
if (Path(__file__).parents[1] / "studies").is_dir():
    COMMANDS.update(STUDIES)
    GROUPS["experiment"] = (
        "Repeat an experiment on a folder of measured prices and counts: train on the past half, test on the later one."
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # imported here because it loads slowly

    try:
        return version("slackwater")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"


PROGRAM: Final = Program(
    name="slackwater",
    help="How many spot and on-demand GPU instances to run in the next slot, so that a job meets its deadline at the least cost.",
    version=_version,
    commands=COMMANDS,
    groups=GROUPS,
)


def main() -> None:
    """Run the command of the command line and exit with its exit code."""
    # Libraries create hundreds of thousands of permanent objects: collecting after every 700 takes a tenth of a command's time.
    gc.set_threshold(50_000, 20, 20)
    open_streams()
    sys.exit(PROGRAM.run(sys.argv[1:]))


if __name__ == "__main__":
    main()
