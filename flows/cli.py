"""The ``slackwater`` command line: the list of all commands, each a function of its options that returns an `Answer`."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from typing import Final

from slackwater.flows.command import COMPLETION, HELP, Command, Program, open_streams
from slackwater.warehouse.plugins import list_plugins, list_studies

#: Command words -> function and example arguments; overviews list the commands in this order.
COMMANDS: Final[dict[str, Command]] = {
    "run": Command("slackwater.flows.engine.command:run", "--data data --job job.toml"),
    "plan": Command(
        "slackwater.flows.plans.command:plan", "job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g"
    ),
    "forecast": Command(
        "slackwater.flows.plans.command:forecast",
        "--market gcp/us-central1/us-central1-a/a3-highgpu-1g --json",
    ),
    "replay": Command(
        "slackwater.flows.plans.command:replay",
        "--job job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g --policy all",
    ),
    "backtest": Command(
        "slackwater.flows.backtest.command:backtest",
        "--job job.toml --market gcp/us-central1/us-central1-a/a3-highgpu-1g --every 6h --html backtest.html",
    ),
    "leaderboard": Command("slackwater.flows.turn.report.command:leaderboard"),
    "report": Command(
        "slackwater.flows.turn.report.command:report", "--at 2026-11-20T14:30Z --html turn.html"
    ),
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
    "act": Command("slackwater.flows.acting.command:act", "--driver simulated --dry-run"),
    "progress": Command("slackwater.flows.acting.command:progress", "llama-8b-lora --watch output"),
    "bill": Command("slackwater.flows.jobs.bill:bill", "llama-8b-lora"),
    "markets": Command("slackwater.flows.exchange:markets"),
    "catalogue": Command("slackwater.flows.catalogue:catalogue", "aws H100 us-east-1"),
    "ingest": Command("slackwater.flows.exchange:ingest", "tabular data"),
    "rejected": Command("slackwater.flows.exchange:show_rejected", "--source aws-spot"),
    "feeds": Command("slackwater.flows.feeds.command:feeds"),
    "feeds fetch": Command("slackwater.flows.feeds.command:fetch", "vast"),
    "accuracy": Command(
        "slackwater.flows.accuracy.command:accuracy", "--data data --market 'gcp/*' --html accuracy.html"
    ),
    "backfill": Command(
        "slackwater.flows.backfill.command:backfill", "--from 2026-11-19 --to 2026-11-20 --dry-run"
    ),
    "status": Command("slackwater.flows.monitoring.command:status"),
    "ui": Command("slackwater.flows.ui.command:ui", "--port 0", extra="serve"),
    "serve": Command("slackwater.flows.engine.command:serve", "--every 1h", extra="serve"),
    "fill": Command("slackwater.flows.requests.command:fill", "request.toml"),
    "fit-configurations": Command("slackwater.flows.configurations.command:fit_configurations", "runs.csv"),
    "rent": Command("slackwater.flows.renting.command:rent", "types.toml --budget 100"),
    "fleet plan": Command("slackwater.flows.plans.command:fleet_plan"),
    "export": Command("slackwater.flows.exchange:export", "folder"),
    "import": Command("slackwater.flows.exchange:import_", "folder --db other.duckdb"),
    "compact": Command("slackwater.flows.exchange:compact"),
    "publish": Command("slackwater.flows.exchange:publish", "shared"),
    "schema": Command("slackwater.flows.schemas.command:schema", "decision"),
    "init": Command("slackwater.flows.schemas.command:init"),
}
#: Command groups: first word of the two-word commands -> help text ("": the docstring of the commands' module).
GROUPS: Final[dict[str, str]] = {
    "job": "Add, change, list and show jobs, and report what they did.",
    "feeds": "List the live feeds of the settings with their last fetch; fetch one by hand.",
    "fleet": "Plan jobs that compete for the same instances together.",
}
#: Entry points of commands in other packages: a function of its options that returns an `Answer`, under the words of the command.
PLUGINS: Final = "slackwater.commands"


def add_commands(places: Mapping[str, str], *, example: str = "") -> None:
    """Add commands, ``module:function`` by words, and their groups; the product's names are not replaced."""
    for words, place in places.items():
        COMMANDS.setdefault(words, Command(place, example))
        first, _, second = words.partition(" ")
        if second:
            GROUPS.setdefault(first, "")


add_commands(list_studies(PLUGINS), example="--data data")  # each needs a folder of histories


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
    words = sys.argv[1:]
    if not words or words[0] in (*HELP, COMPLETION) or words[0] not in {name.split()[0] for name in COMMANDS}:
        add_commands(list_plugins(PLUGINS))  # entry points take a while to read; a command of ours needs none
    sys.exit(PROGRAM.run(words))


if __name__ == "__main__":
    main()
