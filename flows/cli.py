"""The ``slackwater`` command line: the list of all commands, each a function of its options that returns an `Answer`."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Final

from slackwater.flows.command import COMPLETION, HELP, Command, Program, open_streams
from slackwater.warehouse.documents import names_file, read_toml
from slackwater.warehouse.errors import InputError, OldSchemaError, SettingsError, unknown_job, unknown_market
from slackwater.warehouse.plugins import list_plugins, list_studies

_MARKET: Final = "gcp/us-central1/us-central1-a/a3-highgpu-1g"  # The market in examples


def _ours(place: str, example: str = "", extra: str = "") -> Command:
    return Command(f"slackwater.flows.{place}", example, extra)


#: Command words -> function and example arguments; overviews list the commands in this order.
COMMANDS: Final[dict[str, Command]] = {
    "run": _ours("engine.command:run", "--data data --job job.toml"),
    "plan": _ours("plans.command:plan", f"job.toml --market {_MARKET}"),
    "forecast": _ours("plans.command:forecast", f"--market {_MARKET} --json"),
    "replay": _ours("plans.command:replay", f"--job job.toml --market {_MARKET} --policy all"),
    "backtest": _ours(
        "backtest.command:backtest", f"--job job.toml --market {_MARKET} --every 6h --html backtest.html"
    ),
    "leaderboard": _ours("turn.report.command:leaderboard"),
    "report": _ours("turn.report.command:report", "--at 2026-11-20T14:30Z --html turn.html"),
    "job add": _ours("jobs.command:add", f"job.toml --market {_MARKET}"),
    "job change": _ours("jobs.command:change", "llama-8b-lora --deadline 2026-11-21T18:00Z"),
    "job list": _ours("jobs.command:list_"),
    "job show": _ours("jobs.command:show", "llama-8b-lora"),
    "job report": _ours("jobs.command:report", "llama-8b-lora --progress-share 0.4 --on-demand 0 --spot 6"),
    "act": _ours("acting.command:act", "--driver simulated --dry-run"),
    "progress": _ours("acting.command:progress", "llama-8b-lora --watch output"),
    "bill": _ours("jobs.bill:bill", "llama-8b-lora"),
    "markets": _ours("exchange:markets"),
    "catalogue": _ours("exchange:catalogue", "aws H100 us-east-1"),
    "ingest": _ours("ingest:ingest", "tabular data"),
    "rejected": _ours("ingest:show_rejected", "--source aws-spot"),
    "feeds": _ours("feeds.command:feeds"),
    "feeds fetch": _ours("feeds.command:fetch", "vast"),
    "accuracy": _ours("accuracy.command:accuracy", "--data data --market 'gcp/*' --html accuracy.html"),
    "backfill": _ours("backfill.command:backfill", "--from 2026-11-19 --to 2026-11-20 --dry-run"),
    "status": _ours("monitoring.command:status"),
    "ui": _ours("ui.command:ui", "--port 0", extra="serve"),
    "serve": _ours("engine.command:serve", "--every 1h", extra="serve"),
    "fill": _ours("requests.command:fill", "request.toml"),
    "fit-configurations": _ours("configurations.command:fit_configurations", "runs.csv"),
    "rent": _ours("renting.command:rent", "types.toml --budget 100"),
    "fleet plan": _ours("plans.command:fleet_plan"),
    "export": _ours("exchange:export", "folder"),
    "import": _ours("exchange:import_", "folder --db other.duckdb"),
    "compact": _ours("exchange:compact"),
    "publish": _ours("exchange:publish", "shared"),
    "schema": _ours("schemas.command:schema", "decision"),
    "init": _ours("schemas.command:init"),
}
#: Command groups: first word of the two-word commands -> help text ("": the docstring of the commands' module).
GROUPS: Final[dict[str, str]] = {
    "job": "Add, change, list and show jobs, and report their progress.",
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


# ---
# Checks of times, files, jobs and markets of a command line, done before the command's slow imports.

#: Time parameters -> option names.
TIMES = {"at": "--at", "start": "--from", "end": "--to", "deadline": "--deadline"}
#: TOML file parameters -> names in error messages.
TOML_FILES = {"request": "request file", "types": "types file"}
JOB_FILE = "job file"
FAMILY = re.compile(r"[^()\s]+")  # Family of a policy at the beginning of its name: up to its parameters


def check_arguments(command: str, arguments: Mapping[str, Any]) -> None:
    """Raise the error that the command would raise, if it can be detected without the command's imports.

    Checks times, durations, sources, forecasters, families of policies, TOML files of jobs, requests and types, input
    paths, and names of stored jobs and of markets.
    """
    session = next((value for value in arguments.values() if hasattr(value, "db")), None)
    parts = [vars(value) if is_dataclass(value) else {name: value} for name, value in arguments.items()]
    arguments = {name: value for part in parts for name, value in part.items()}
    for name, text in arguments.items():
        if name in TIMES and isinstance(text, str):
            from slackwater.flows.clock import check_written

            check_written(text, TIMES[name])
        if name in TOML_FILES and isinstance(text, Path):
            read_toml(text, TOML_FILES[name])
    if command == "ingest" and arguments.get("source") and not arguments["list_sources"]:
        _check_source(arguments["source"], arguments["paths"])
    if models := [*filter(None, [arguments.get("model")]), *(arguments.get("models") or ())]:
        _check_predictors(models)
    if arguments.get("policy"):
        _check_policies(arguments["policy"])
    data = arguments.get("data")
    paths: tuple[Path, ...] = (*(arguments.get("paths") or ()), *([data] if isinstance(data, Path) else []))
    for path in paths:
        if not str(path).startswith("-") and not path.exists():
            raise InputError(f"no file or folder {path}", remedy="check the path")
    if command == "job add":
        files: tuple[Path, ...] = arguments.get("files") or ()
        if len(files) == 1:  # of several files an unusable file does not stop the others
            read_toml(files[0], JOB_FILE)
    job = _job_name(command, arguments)
    if session is not None and _reads(command, session):
        _check_there(session.db)
    if job is not None and session is not None:
        _check_job(job, session)
    market = arguments.get("market")
    if isinstance(market, str) and session is not None and command in BY_MARKET:
        _check_market(market, session)
    _check_forms(command, arguments)


def _check_source(source: str, paths: Sequence[Path]) -> None:
    """Raise `InputError` for an unknown source, and for a source that reads files if none is given."""
    from slackwater.warehouse.sources import SOURCES, check_source

    check_source(source)
    if not paths and SOURCES[source].has_files:
        raise InputError(
            f"no file of the source {source!r} given",
            expected="files, folders, or - for standard input",
            remedy=f"`slackwater ingest {source} FILE`",
        )


def _check_predictors(names: Sequence[object]) -> None:
    """Raise `SettingsError` for an unknown forecaster."""
    from slackwater.forecasting.predictors import check_predictor

    for name in names:
        if name != "perfect":
            check_predictor(str(name))


def _check_policies(names: str | Sequence[str]) -> None:
    """Raise `SettingsError` for a policy of no known family; its parameters are checked when it is created."""
    from slackwater.optimization.moving import MULTI_MARKET_POLICIES
    from slackwater.optimization.policies import POLICIES, POLICY_NAMES

    for name in [names] if isinstance(names, str) else names:
        family = FAMILY.match(name.strip())
        if name in ("all", *MULTI_MARKET_POLICIES) or (family is not None and family.group() in POLICIES):
            continue
        raise SettingsError(
            f"policy {name!r}",
            expected=f"{POLICY_NAMES}; of a job in several markets {', '.join(map(repr, MULTI_MARKET_POLICIES))}",
        )


#: Commands that read a warehouse and never create it.
READERS = (
    "act", "backtest", "bill", "export", "forecast", "job list", "job show", "leaderboard", "markets", "plan", "rejected",
    "replay", "report", "status",
)  # fmt: skip


def _reads(command: str, session: Any) -> bool:
    return command in READERS and getattr(session, "data", None) is None


BY_NAME = ("job show", "job report")  # Commands whose first argument is the name of a stored job


def _job_name(command: str, arguments: Mapping[str, Any]) -> str | None:
    """Return the name of a stored job among the arguments, if any; raise `JobError` for an unreadable job file."""
    job = arguments.get("name") if command in BY_NAME else arguments.get("job")
    if isinstance(job, Path) or (isinstance(job, str) and command not in BY_NAME and names_file(job)):
        read_toml(Path(job), JOB_FILE)
        return None
    return job if isinstance(job, str) else None


#: Commands whose ``--market`` must be a market of the warehouse.
BY_MARKET = ("backtest", "forecast", "job add", "plan", "replay")


def _check_forms(command: str, arguments: Mapping[str, Any]) -> None:
    """Check durations and the keys of a job file, which requires pandas."""
    if isinstance(every := arguments.get("every"), str) and command == "backtest":
        from slackwater.warehouse.amounts import parsed_duration

        try:
            parsed_duration(every)
        except ValueError as error:
            raise SettingsError(f"--every {error}") from error
    files: list[Any] = [arguments.get("job"), *(arguments.get("files") or ())]
    files = [
        Path(file) for file in files if isinstance(file, Path) or (isinstance(file, str) and names_file(file))
    ]
    if len(files) == 1 and command in ("backtest", "job add", "plan", "replay"):
        from slackwater.optimization.job.request import read_request

        read_request(files[0])


def _check_market(market: str, session: Any) -> None:
    rows = _rows(session, "SELECT DISTINCT market FROM market_series ORDER BY market")
    known = [str(name) for (name,) in rows]
    if known and market.count("/") == 3 and market.partition("@")[0] not in known:
        raise unknown_market(market, known)


def _check_there(db: Path) -> None:
    from slackwater.warehouse.store.files import check_place, is_shared

    if not is_shared(db):
        check_place(db, read_only=True)


def _rows(session: Any, query: str) -> list[tuple[Any, ...]]:
    """Return rows of the warehouse; empty if it does not exist, has an older schema, or data are read from files."""
    if not session.db.exists() or getattr(session, "data", None) is not None:
        return []  # the command reports it
    from slackwater.warehouse.store.connection import open_reader

    try:
        with open_reader(session.db) as store:
            return store.execute(query)
    except OldSchemaError:
        return []  # the command migrates it first


def _check_job(job: str, session: Any) -> None:
    known = [str(name) for (name,) in _rows(session, "SELECT name FROM jobs ORDER BY created_at, name")]
    if known and job not in known:
        raise unknown_job(job, known)


# ---

PROGRAM: Final = Program(
    name="slackwater",
    help="How many spot and on-demand GPU instances to run in the next slot, so that a job meets its deadline at the least cost.",
    version=_version,
    commands=COMMANDS,
    groups=GROUPS,
    check=check_arguments,
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
