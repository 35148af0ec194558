"""Framework of the command line: a command is a function of its options that returns an `Answer`, printed here."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from io import TextIOWrapper
from pathlib import Path
from threading import Event, Lock, Thread, Timer
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Protocol,
    TextIO,
    TypeAlias,
    TypeVar,
    dataclass_transform,
)

from cyclopts import App, CycloptsError, Parameter, Token, UnusedCliTokensError, convert, validators

from slackwater.flows.show.blocks import Banner, Block, Notes, Page, Section
from slackwater.flows.show.formats import as_json
from slackwater.flows.show.terminal import Style, escape_controls, lines_of, wrap_text

if TYPE_CHECKING:
    import pandas as pd

    from slackwater.flows.config import Settings
    from slackwater.warehouse.observations import Bounds
    from slackwater.warehouse.store.connection import Store


# ---
# Progress on standard error; standard output is reserved for the answer.
#
# A failure to report progress, such as a closed pipe, must not stop the work.

PATIENCE: Final = 2.0  # Seconds before a progress bar appears
#: Least seconds between two progress lines of a flow run.
LINE_SECONDS: Final = 30.0
_ONE_BAR: Final = Lock()


class ProgressUpdate(Protocol):
    """Callback for progress: number of steps done, total and current item, as far as known."""

    def __call__(self, done: int, total: int | None = None, text: str | None = None) -> None:
        """Report the progress."""


class Log(Protocol):
    """Log of the current flow run."""

    def __call__(self, text: str) -> bool | None:
        """Log a line unless it is empty; return None outside of a flow run, else whether the user sees the log live."""


_log: Log = lambda text: None  # noqa: E731


def keep_log(log: Log) -> None:
    """Set the log that also receives the lines of `say`; `slackwater.flows.runs` sets the log of the current flow run."""
    global _log
    _log = log


def say(text: str) -> None:
    """Write a progress line to the log of the flow run, if any, and to standard error unless the user sees the log there."""
    if _log(text):
        return
    # A log gets the line unbroken; on a terminal it is wrapped between words.
    width = shutil.get_terminal_size().columns - 2 if _listened_to() else None
    with suppress(OSError, ValueError):  # closed pipe or file
        for line in wrap_text(f"{escape_controls(text)} ...", width):
            print(f"  {line}", file=sys.stderr, flush=True)


@contextmanager
def progress(title: str, total: int | None = None, *, lines: bool = False) -> Iterator[ProgressUpdate]:
    """Show a progress bar for work longer than `PATIENCE` seconds; yields the callback that updates it.

    Silent within another progress bar and without a terminal. A flow run without a terminal, and
    with ``lines`` any other process without one, logs a line every `LINE_SECONDS`.
    """
    if not _listened_to():
        with _lines(title, total, always=lines) as tell:
            yield tell
        return
    if not _ONE_BAR.acquire(blocking=False):
        yield lambda done, total=None, text=None: None
        return
    try:
        with _bar(title, total) as tell:
            yield tell
    finally:
        _ONE_BAR.release()


@contextmanager
def _lines(title: str, known: int | None, *, always: bool) -> Iterator[ProgressUpdate]:
    """Log the share of the work done and the time left every `LINE_SECONDS`; see `progress`."""
    from slackwater.warehouse.times import steady_seconds

    start, ended = steady_seconds(), Event()
    state: tuple[int, int | None, str | None] = (0, known, None)

    def tell(done: int, total: int | None = None, text: str | None = None) -> None:
        nonlocal state
        state = (done, total or state[1], text)

    def log() -> None:
        while not ended.wait(LINE_SECONDS):
            if always or _log("") is not None:
                say(progress_words(title, *state, seconds=steady_seconds() - start))

    thread = Thread(target=copy_context().run, args=(log,), daemon=True, name="progress")
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        thread.join()


def progress_words(
    title: str, done: int, total: int | None, text: str | None = None, *, seconds: float
) -> str:
    """Return a line of progress: the share done after ``seconds`` and the time left at the same pace.

    >>> progress_words("stages", 480, 1920, seconds=300.0)
    'stages: 480 of 1,920 (25 %), about 15 min left'
    """
    parts = [f"{title}: {done:,}"]
    if total:
        parts = [f"{title}: {done:,} of {total:,} ({done / total:.0%})".replace("%", " %")]
        if 0 < done < total:
            parts.append(f"about {max(1, round(seconds * (total - done) / done / 60)):,} min left")
    return ", ".join([*parts, *([text] if text else [])])


def call_with_progress(function: Callable[..., Any], calls: Sequence[dict[str, Any]]) -> list[Any]:
    """Call a function with each set of keyword arguments in order, with a progress bar; return the results."""
    results = []
    with progress(words_of(function), len(calls)) as tell:
        for call in calls:
            results.append(function(**call))
            tell(len(results))
    return results


def words_of(function: Callable[..., Any]) -> str:
    """Return a function's name as words.

    >>> words_of(words_of)
    'words of'
    """
    return function.__name__.strip("_").replace("_", " ")


@contextmanager
def _bar(title: str, total: int | None) -> Iterator[ProgressUpdate]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TimeRemainingColumn())  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(title, total=total)
    lock, ended = Lock(), False

    def appear() -> None:
        with lock, suppress(OSError, ValueError):
            if not ended:
                bar.start()

    def tell(done: int, total: int | None = None, text: str | None = None) -> None:
        known: dict[str, Any] = {"completed": done}
        if total is not None:
            known["total"] = total
        if text is not None:
            known["description"] = f"{title}: {text}"
        with suppress(OSError, ValueError):
            bar.update(task, **known)

    timer = Timer(PATIENCE, appear)
    timer.daemon = True
    timer.start()
    try:
        yield tell
    finally:
        timer.cancel()
        with lock, suppress(OSError, ValueError):
            ended = True
            bar.stop()


def _listened_to() -> bool:
    with suppress(OSError, ValueError, AttributeError):
        return sys.stderr.isatty()
    return False


def open_streams() -> None:
    """Open the null device for streams closed at start (``>&-``); the next opened file would receive their output.

    Characters that the locale cannot encode are written as escapes.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(number)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8"))
        elif isinstance(stream := getattr(sys, name), TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def outlive_readers() -> None:
    """Make this process discard writes to standard output and error, instead of failing, once nobody reads them."""
    open_streams()
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, _Outliving):
            setattr(sys, name, _Outliving(stream))


class _Outliving:
    """Text stream that discards its output once the reader is gone, for all writers: loggers, libraries and progress bars."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._lead_nowhere()
        except ValueError:
            if not self._stream.closed:  # for example a character that it cannot encode
                raise
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._lead_nowhere()
        except ValueError:
            if not self._stream.closed:
                raise

    def _lead_nowhere(self) -> None:
        """Redirect to the null device: buffered text would fail again at every flush and at the end of the process."""
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


# ---
# Options shared by commands, and the objects they open: warehouse, settings, logical time.


def option(
    help: str,
    *,
    name: str | Iterable[str] | None = None,
    metavar: str | None = None,
    least: float | None = None,
    most: float | None = None,
    variable: str | None = None,
    hyphen: bool = False,
) -> Parameter:
    """Return the declaration of an option or argument with help text ``help``.

    ``name``: if it differs from the parameter's; ``metavar``: placeholder for the value; ``least`` and ``most``: bounds;
    ``variable``: environment variable used if the option is not given; ``hyphen``: values such as ``-`` are allowed.
    A ``TIME`` has the rule of M1.4 in its help.
    """
    if metavar == "TIME":
        help = f"{help} UTC unless a zone is given."
    more: dict[str, Any] = {"converter": _convert_option} | ({"env_var": variable} if variable else {})
    if hyphen:
        more["allow_leading_hyphen"] = True
    if least is not None or most is not None:
        more["validator"] = validators.Number(gte=least, lte=most)
    return Parameter(name=name, help=help, metavar=metavar, **more)


def _convert_option(kind: Any, tokens: Sequence[Token]) -> Any:
    """Convert the words of an option; numbers are those of `slackwater.warehouse.amounts.is_number`, and are not rounded."""
    from slackwater.warehouse.amounts import parsed_number, parsed_whole

    if kind is int or kind is float:
        return (parsed_whole if kind is int else parsed_number)(tokens[-1].value)
    return convert(kind, tokens)


def shown_default(value: Any) -> str | None:
    """Return a default value for the help text; None for flags that are off and for empty values."""
    return None if value is None or value is False or value in ((), [], "") else str(value)


T = TypeVar("T")
DEFAULT_DB: Final = Path("slackwater.duckdb")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def shared(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass whose fields are options of every command with a parameter of that class."""
    return Parameter(name="*")(dataclass(frozen=True, kw_only=True)(cls))


@shared
class Output:
    """Options for the output format."""

    json: Annotated[bool, option("Print a JSON object instead of tables.")] = False
    html: Annotated[Path | None, option("Also write the answer as an HTML page.", metavar="FILE")] = None

    def show(self, blocks: Sequence[Block]) -> None:
        """Print blocks before the answer is complete; print nothing with ``--json``."""
        if not self.json:
            for line in lines_of(blocks, terminal_style()):
                print(line)
            sys.stdout.flush()


@shared
class Warehouse:
    """Options for the warehouse and the settings file."""

    db: Annotated[
        Path,
        option("Warehouse, a DuckDB file; created if missing.", metavar="FILE", variable="SLACKWATER_DB"),
    ] = Path("slackwater.duckdb")
    settings: Annotated[
        Path | None, option("Settings file (default: slackwater.toml, if it exists).", metavar="FILE")
    ] = None

    @property
    def config(self) -> Settings:
        """The settings; raises `SettingsError` if the file cannot be used."""
        from slackwater.flows.config import read_settings

        return read_settings(self.settings)

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Open the warehouse read-only, after migrating an older schema; raises `StoreError` if there is none."""
        from slackwater.warehouse.errors import OldSchemaError
        from slackwater.warehouse.store.connection import open_reader

        try:
            reader = open_reader(self.db)
        except OldSchemaError:
            if not self.db.is_file():  # only the publisher may migrate a published warehouse
                raise
            with self.writing():
                pass
            reader = open_reader(self.db)
        with reader as store:
            yield store

    @contextmanager
    def writing(self) -> Iterator[Store]:
        """Open the warehouse for writing, creating it if missing; other writers wait."""
        from slackwater.warehouse.store.connection import open_store

        with open_store(self.db, say=say) as store:
            yield store


@shared
class Query(Output, Warehouse):
    """Options of commands that query the warehouse."""


@shared
class QueryAt(Query):
    """Options of `Query`, with a logical time."""

    at: Annotated[str | None, option("Logical time, ISO 8601.", metavar="TIME")] = None

    @property
    def time(self) -> pd.Timestamp | None:
        """The time of ``--at``, or None; raises `SettingsError` if it is not a time."""
        return parsed_time(self.at, "--at")

    def moment(self, store: Store) -> tuple[pd.Timestamp, bool]:
        """Return the logical time of a command, and whether every market is taken at the end of its own record.

        This is ``--at`` and False, or the time of the newest observation and True. Raises `MarketError` on a warehouse
        without observations.
        """
        from slackwater.warehouse.errors import no_observations
        from slackwater.warehouse.listing import observed_span

        if self.time is not None:
            return self.time, False
        _, last = observed_span(store)
        if last is None:
            raise no_observations()
        return last, True


@shared
class Session(QueryAt):
    """Options of `QueryAt`, for the warehouse or a folder of tables."""

    data: Annotated[
        Path | None, option("Folder with prices and availability tables to read.", metavar="DIR")
    ] = None

    @contextmanager
    def market_data(self, *, write: bool = False) -> Iterator[Store]:
        """Open the warehouse, read-only unless ``write``; with ``--data`` a temporary one with the tables of that folder."""
        if self.data is None:
            with self.writing() if write else self.reading() as store:
                yield store
            return
        from slackwater.flows.clock import now

        with folder_store(self.data, self.config.bounds.at(now())) as store:
            yield store


@contextmanager
def folder_store(data: Path, bounds: Bounds) -> Iterator[Store]:
    """Open a temporary warehouse with the tables of a folder; rows beyond ``bounds`` are left out."""
    from tempfile import TemporaryDirectory

    import pandas as pd

    from slackwater.warehouse.observations import ingest
    from slackwater.warehouse.store.connection import open_store

    with (
        TemporaryDirectory(prefix="slackwater-") as folder,
        open_store(Path(folder) / "data.duckdb") as store,
    ):
        say(f"read {data}")
        # The time of an import does not matter in a temporary warehouse.
        epoch = pd.Timestamp(0, tz="UTC")
        ingest(store, "tabular", data, known_at=None, imported_at=epoch, bounds=bounds)
        yield store


def parsed_time(text: str | None, name: str) -> pd.Timestamp | None:
    """Return the time given by option ``name``, or None without it; raise `SettingsError` naming the option."""
    from slackwater.flows.clock import parse_time

    return None if text is None else parse_time(text, name)


def parsed_duration(text: str, name: str) -> pd.Timedelta:
    """Return a duration such as 10min, 1h or 7d; raise `SettingsError` naming option ``name``."""
    from slackwater.warehouse import amounts
    from slackwater.warehouse.errors import SettingsError

    try:
        return amounts.parsed_duration(text)
    except ValueError as error:
        raise SettingsError(f"{name} {error}") from error


MarketName = Annotated[
    str | None,
    option("provider/region/zone/instance_type, optionally @source.", name="--market", metavar="MARKET"),
]


# ---
# Answers of commands, and their output as lines, a JSON object or a page.


PIPE_WIDTH: Final = 100  # Width in columns of a pipe or a file, unless ``COLUMNS`` is set


MOST_LISTED = 40  # Rows of a list shown on a terminal; pipes, pages and ``--json`` contain all rows

Patterns: TypeAlias = Annotated[
    str, option("Part of a name, or a shell pattern; several must all match.", metavar="PATTERN...")
]


def all_fit(patterns: Sequence[str], names: Sequence[str]) -> bool:
    """Return whether each pattern is part of any of the names, or a shell pattern that matches a name."""
    from slackwater.warehouse.catalogue import is_named

    return all(any(name and is_named(pattern, name) for name in names) for pattern in patterns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Result of a command.

    ``value`` is the JSON object; objects for other programs have a form in ``flows/schemas/data/forms.toml``. ``about`` (a line),
    ``banner``, ``blocks`` and ``notes`` are displayed in this order. The blocks ``shown`` were already printed by
    `Output.show`; a page contains them before ``blocks``. ``page`` returns a different page, if set (a text is HTML).
    ``exit_code`` is the exit code of the program.
    """

    title: str
    value: Any
    blocks: Sequence[Block] = ()
    shown: Sequence[Block] = ()
    about: str = ""
    banner: Banner | None = None
    notes: Sequence[str] = ()
    page: Callable[[], Page | str] | None = None
    exit_code: int = 0

    def as_page(self) -> Page | str:
        """Return the answer as a page."""
        if self.page is not None:
            return self.page()
        blocks = [*self.shown, *self.blocks, *self._last()]
        return Page(title=self.title, about=self.about, banner=self.banner, blocks=blocks)

    def lines(self, style: Style) -> Iterator[str]:
        """Yield the lines of the answer for a terminal."""
        first = (self.about, self.banner)
        yield from lines_of([*(block for block in first if block), *self.blocks, *self._last()], style)

    def _last(self) -> Sequence[Block]:
        return [Section("Notes", [Notes(self.notes)], "notes")] if self.notes else []


def deliver(answer: Answer, output: Output | None) -> int:
    """Write the requested page, print the answer and return the exit code; raises `InputError` for an unwritable page."""
    if output is not None and output.html is not None:
        from slackwater.flows.show.page import render_page, write_html

        page = answer.as_page()
        write_html(page if isinstance(page, str) else render_page(page), output.html, option="--html")
    if output is not None and output.json:
        print(as_json(answer.value))
        return answer.exit_code
    for line in answer.lines(terminal_style()):
        print(line)
    if output is not None and output.html is not None:
        print(f"page: {output.html}")
    return answer.exit_code


def terminal_style() -> Style:
    """Return the style of standard output: width of ``COLUMNS``, the terminal or `PIPE_WIDTH`; abridged on a terminal only."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((0, 0)).columns or (80 if terminal else PIPE_WIDTH)
    bold = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    return Style(width=max(20, width), bold=bold, abridged=terminal)


# ---
# Running a command line; user errors are reported in a single line with exit code 2.

#: Exit codes: user error, interrupt and broken pipe (128 plus the number of the signal).
USER_ERROR, STOPPED, NOBODY_READS = 2, 130, 141
HELP: Final = ("--help", "-h")
COMPLETION: Final = "--install-completion"  # Option that writes the completion script of a shell


@dataclass(frozen=True, slots=True)
class Command:
    """Command: ``module:function``, imported when called, and ``example`` arguments shown at the end of its help.

    ``extra``: the optional extra of the package without which the command is refused.
    """

    function: str
    example: str = ""
    extra: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """Program with its commands by their words; ``groups``: first words of two-word commands, with help texts.

    ``check`` raises the errors of a command's arguments that are found without the command's imports.
    """

    name: str
    help: str
    version: Callable[[], str]
    commands: Mapping[str, Command]
    groups: Mapping[str, str]
    check: Callable[[str, Mapping[str, Any]], None]

    def run(self, words: Sequence[str]) -> int:
        """Run a command and return the exit code; a user error is printed to standard error in a single line."""
        try:
            return self._run(list(words))
        except CycloptsError as error:
            found = _refusal(error)
            return self._complain(f"{found}; see `{self._help_for(words)}`")
        except (
            _user_errors()
        ) as error:  # evaluated only on an exception, to keep its import out of help texts
            return self._complain(str(error))
        except MemoryError as error:
            return self._complain(_no_memory(error))
        except KeyboardInterrupt:
            return self._complain("stopped", STOPPED)
        except BrokenPipeError:  # the reader closed the pipe, as in `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return NOBODY_READS

    def _run(self, words: list[str]) -> int:
        overview = not words or words[-1] in HELP or words[-1] in self.groups
        app = self.app(known=overview or words[0] == COMPLETION, first=words[0] if words else "")
        command, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
        bound.apply_defaults()
        for value in bound.arguments.values():
            if isinstance(value, Warehouse):
                _ = value.config  # a misspelled setting or variable is an error in every command
        pair = " ".join(words[:2])
        name = pair if pair in self.commands else words[0] if words else ""
        self.check(name, bound.arguments)
        declared = self.commands.get(name)
        if (
            declared is not None and declared.extra and command is _function(declared.function)
        ):  # not its help
            from slackwater.warehouse.plugins import require_extra

            require_extra(declared.extra, f"`{self.name} {name}`")
        result = command(*bound.args, **bound.kwargs)
        if not isinstance(
            result, Answer
        ):  # help and version print their text themselves; a server returns no answer
            return USER_ERROR if self._only_overview(words) else 0
        output = next((value for value in bound.arguments.values() if isinstance(value, Output)), None)
        try:
            code = deliver(result, output)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:  # a full disk
            return self._complain(
                f"standard output cannot be written: {error.strerror}; make room, or name another file"
            )
        return code

    def app(self, *, known: bool = True, first: str = "") -> App:
        """Return the cyclopts application.

        ``known`` imports every command, so that overviews show their help; else the group with the
        word ``first`` is imported if it is a command too.
        """
        defaults = Parameter(negative=(), show_default=shown_default)
        settings: dict[str, Any] = {
            "default_parameter": defaults,
            "suppress_keyboard_interrupt": False,
            "help_format": "plaintext",
        }
        app = App(name=self.name, help=self.help, version=self.version, **settings)
        inner: dict[str, App] = {}
        for place, (words, command) in enumerate(self.commands.items()):
            group, _, second = words.partition(" ")
            if group in self.groups and group not in inner:
                summary = self.groups[group]
                if known and not summary:  # that of the module of its commands
                    module = sys.modules[_function(command.function).__module__]
                    summary = (module.__doc__ or "").partition("\n")[0]
                inner[group] = App(name=group, help=summary, version_flags=(), sort_key=place, **settings)
                app.command(inner[group])
            if group in inner and not second:
                if known or group == first:
                    inner[group].default(_function(command.function))
                    inner[group].help_epilogue = self._example(words)
                continue
            owner, name = (inner[group], second) if second else (app, group)
            function = _function(command.function) if known else command.function
            text = {"help": _paragraphs(function.__doc__ or "")} if callable(function) else {}
            owner.command(function, name=name, sort_key=place, help_epilogue=self._example(words), **text)
        app.register_install_completion_command(
            name=COMPLETION,
            add_to_startup=False,
            help="Write the script for shell completion of commands and options (--shell bash, zsh, fish or powershell).",
        )
        return app

    def _example(self, words: str) -> str:
        return f"Example: {' '.join(filter(None, (self.name, words, self.commands[words].example)))}"

    def _help_for(self, words: Sequence[str]) -> str:
        """Return the command line whose help describes the arguments of a refused command line.

        >>> program = Program(name="p", help="", version=str, commands={"job add": Command("m:f")}, groups={}, check=print)
        >>> program._help_for(["job", "add", "-x"])
        'p job add --help'
        """
        named = {*self.commands, *self.groups}
        known = next((k for k in (2, 1) if " ".join(words[:k]) in named), 0)
        return " ".join((self.name, *words[:known], "--help"))

    def _only_overview(self, words: Sequence[str]) -> bool:
        """Return whether the command line has no command, so that an overview was printed."""
        return not words or (len(words) == 1 and words[0] in self.groups and words[0] not in self.commands)

    def _complain(self, text: str, code: int = USER_ERROR) -> int:
        print(f"{self.name}: {escape_controls(' '.join(text.splitlines()))}", file=sys.stderr)
        return code


def _refusal(error: CycloptsError) -> str:
    """Return a refused command line in a sentence without its full stop."""
    if isinstance(error, UnusedCliTokensError):
        return f"unexpected {', '.join(map(repr, error.unused_tokens or []))}; expected no further argument"
    return (
        " ".join(str(error).split()).partition(" Available commands:")[0].rstrip(".")
    )  # the help has all of them


def _function(path: str) -> Callable[..., Any]:
    """Import the function at ``module:function``; raises `SettingsError` if that fails."""
    module, _, name = path.partition(":")
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        from slackwater.warehouse.errors import SettingsError

        raise SettingsError(
            f"the command {path!r} cannot be imported: {error}",
            expected="module:function of an installed package",
            remedy="install it again or remove the package that registers it",
        ) from error
    return function


def _paragraphs(text: str) -> str:
    r"""Return a docstring with each paragraph on a line of its own, which the terminal wraps at its width.

    >>> _paragraphs("Run a turn.\n\n    Without data,\n    nothing.\n    ")
    'Run a turn.\n\nWithout data, nothing.'
    """
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


def _no_memory(error: MemoryError) -> str:
    from slackwater.warehouse.errors import why_raised

    return f"{why_raised(error)}; use a machine with more memory, or reduce the request"


def _user_errors() -> type[Exception]:
    from slackwater.warehouse.errors import SlackwaterError

    return SlackwaterError
