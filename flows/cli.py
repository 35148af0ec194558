"""The ``slackwater`` command line: the list of all commands, each a function of its options that returns an `Answer`."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Final

from flows.command import Command, Program, open_streams

#: Command words -> function and example arguments; overviews list the commands in this order.
COMMANDS: Final = {
    "run": Command("flows.engine.command:run", "--data data --job job.toml"),
    "plan": Command(
        "flows.turn.command:plan", "job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g"
    ),
    "forecast": Command(
        "flows.turn.command:forecast", "--market gcp/us-central1/us-central1-a/a3-highgpu-1g --json"
    ),
    "replay": Command(
        "flows.turn.command:replay",
        "--job job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g --policy all",
    ),
    "backtest": Command(
        "flows.backtest.command:backtest",
        "--job job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g --every 6h --html backtest.html",
    ),
    "leaderboard": Command("flows.turn.command:leaderboard"),
    "report": Command("flows.turn.command:report", "--at 2026-11-20T14:30Z --html turn.html"),
    "job add": Command(
        "flows.jobs.command:add", "job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g"
    ),
    "job change": Command("flows.jobs.command:change", "llama-8b-lora --deadline 2026-11-21T18:00Z"),
    "job list": Command("flows.jobs.command:list_"),
    "job show": Command("flows.jobs.command:show", "llama-8b-lora"),
    "job report": Command(
        "flows.jobs.command:report", "llama-8b-lora --progress-share 0.4 --on-demand 0 --spot 6"
    ),
    "bill": Command("flows.jobs.bill:bill", "llama-8b-lora"),
    "markets": Command("flows.exchange:markets"),
    "catalogue": Command("flows.catalogue:catalogue", "aws H100 us-east-1"),
    "ingest": Command("flows.exchange:ingest", "tabular data"),
    "rejected": Command("flows.exchange:rejected", "--source aws-spot"),
    "feeds": Command("flows.feeds.command:feeds"),
    "feeds fetch": Command("flows.feeds.command:fetch", "vast"),
    "accuracy": Command(
        "flows.accuracy.command:accuracy", "--data data --market 'gcp/*' --html accuracy.html"
    ),
    "backfill": Command("flows.backfill.command:backfill", "--from 2026-11-19 --to 2026-11-20 --dry-run"),
    "status": Command("flows.monitoring.command:status"),
    "ui": Command("flows.ui.command:ui", "--port 0"),
    "serve": Command("flows.engine.command:serve", "--every 1h"),
    "fill": Command("flows.requests.command:fill", "request.toml"),
    "fit-configurations": Command("flows.configurations.command:fit_configurations", "runs.csv"),
    "rent": Command("flows.renting.command:rent", "types.toml --budget 100"),
    "fleet plan": Command("flows.fleet.command:plan"),
    "export": Command("flows.exchange:export", "folder"),
    "import": Command("flows.exchange:import_", "folder --db other.duckdb"),
    "compact": Command("flows.exchange:compact"),
    "publish": Command("flows.exchange:publish", "shared --form parquet"),
    "schema": Command("flows.schemas.command:schema", "decision"),
    "init": Command("flows.schemas.command:init"),
}
#: Command groups: first word of the two-word commands -> help text.
GROUPS: Final = {
    "job": "Add, change, list and show jobs, and report what they did.",
    "feeds": "List the live feeds of the settings with their last fetch; fetch one by hand.",
    "fleet": "Plan jobs that compete for the same instances together.",
}
#: Commands of the studies, which a clone has and a wheel does not.
STUDIES: Final = {
    "experiment pool": Command("studies.experiments.command:pool", "--data data"),
    "experiment error": Command("studies.experiments.command:error", "--data data"),
    "experiment selection": Command("studies.experiments.command:selection", "--data data"),
    "experiment cant-be-late": Command("studies.experiments.command:cant_be_late", "--data data"),
    "experiment predictors": Command("studies.experiments.command:predictors", "--data data"),
    "experiment cluster": Command("studies.experiments.command:cluster", "--data data"),
    "experiment renting": Command("studies.experiments.command:renting", "--data data"),
    "experiment advice": Command("studies.experiments.command:advice", "--data data"),
    "experiment markets": Command("studies.experiments.command:markets", "--data data"),
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
    help="How many spot and on-demand GPU instances to hold in the next slot, so that a job meets its deadline at the least cost.",
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
