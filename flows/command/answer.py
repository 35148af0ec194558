"""Tables for people and JSON for programs."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

#: A time as ISO 8601 in UTC; a person reads it to the minute.
TIME = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d):\d\d(?:\.\d+)?\+00:00")
#: Sentences need room.
WIDTHS = {"reason": 40, "job": 14, "slot": 16, "deadline": 16, "expected_finish": 16}
#: Columns of a table that goes into a file or a pipe: nobody's window is too narrow for it.
PIPED_WIDTH = 200


def say_to_stderr(text: str) -> None:
    """Progress for a person who waits; standard output stays for the answer."""
    print(f"  {text} ...", file=sys.stderr, flush=True)


@contextmanager
def row_progress() -> Iterator[Callable[[str, int], None]]:
    """A line on stderr that counts rows while files are read, for a person at a terminal; silent elsewhere."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading")
        yield lambda file, rows: bar.update(task, description=f"{file}: {rows:,} rows read")


@contextmanager
def slot_progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr over pieces of work for a person at a terminal, a line now and then elsewhere; it is told the pieces done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("backfill", total=total)
        done = 0

        def tell(pieces: int) -> None:
            nonlocal done
            done += pieces
            bar.update(task, completed=done)
            if not console.is_terminal:
                say_to_stderr(f"{done} of {total} stages")

        yield tell


def print_json(value: object) -> None:
    """One JSON object on stdout: no NaN, times as ISO 8601."""
    print(json.dumps(plain(value), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """The value with NaN as null and times as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "isoformat"):
        return None if str(value) == "NaT" else value.isoformat()
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(title: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> None:
    """A table of the named columns (key -> heading); a sentence instead of an empty one."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    if not rows:
        console.print(f"{escape(title)}: none")
        return
    # Texts from outside may hold what looks like markup: they are shown as they are.
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    for key, heading in columns.items():
        numeric = all(isinstance(row.get(key), int | float | None) for row in rows)
        table.add_column(
            heading, justify="right" if numeric else "left", overflow="fold", min_width=WIDTHS.get(key)
        )
    for row in rows:
        table.add_row(*(escape(cell(row.get(key))) for key in columns))
    console.print(table)


def cell(value: Any) -> str:
    """A value as a person reads it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return "; ".join(str(item) for item in value)
    text = str(value)
    stamp = TIME.fullmatch(text)
    return f"{stamp[1]} {stamp[2]}" if stamp else text
