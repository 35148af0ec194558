"""Files of text and JSON, plain or compressed: found, opened, and refused with the line where they go wrong."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from warehouse.errors import SourceFileError

_HEAD_BYTES = 8192
#: More than that is no file of a market: a small file may unpack to far more than there is memory.
_LONGEST_LINE = 64 << 20
_LARGEST_JSON = 512 << 20


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file for reading; ``.gz``, ``.zst`` and ``.bz2`` are unpacked. Raises `SourceFileError`."""
    try:
        if path.is_dir():
            raise SourceFileError(path, 0, "a folder", expected="a file")
        return io.BufferedReader(pa.input_stream(str(path), compression="detect"))
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: BaseException) -> SourceFileError:
    """The error of a file that the system cannot open or unpack."""
    return SourceFileError(
        path, 0, f"cannot be read ({error})", expected="a readable file", remedy="check it is complete"
    )


def head(path: Path) -> bytes:
    """The first bytes of a file, b"" if it cannot be read (used to recognise formats inside folders)."""
    try:
        with open_bytes(path) as stream:
            return stream.read(_HEAD_BYTES)
    except (SourceFileError, OSError):
        return b""


def collect(
    paths: Sequence[Path], recognised: Callable[[Path], bool], *, source: str, expected: str
) -> list[Path]:
    """Files named in ``paths`` as they are, plus the recognised ones anywhere below the folders named, sorted.

    Raises `SourceFileError` on a path that does not exist and when nothing is found.
    """
    found: set[Path] = set()
    for path in paths:
        if path.is_dir():
            found |= {p for p in path.rglob("*") if p.is_file() and recognised(p)}
        elif path.exists():
            found.add(path)
        else:
            raise SourceFileError(path, 0, "does not exist", expected=expected, remedy="check the path")
    if not found:
        where = ", ".join(str(p) for p in paths) or "(no path given)"
        raise SourceFileError(
            where,
            0,
            f"no file of the source {source!r}",
            expected=expected,
            remedy="name another path or source",
        )
    return sorted(found)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(1-based line, text without line end) of a UTF-8 file; raises `SourceFileError` at the first line that is not UTF-8."""
    number = 0
    try:
        with open_bytes(path) as stream:
            lines = iter(lambda: stream.readline(_LONGEST_LINE + 1), b"")
            for number, raw in enumerate(lines, start=1):
                if len(raw) > _LONGEST_LINE:
                    raise _too_large(path, number, "a line", _LONGEST_LINE)
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise not_text(path, number, error) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _too_large(path: Path, line: int, what: str, most: int) -> SourceFileError:
    return SourceFileError(
        path,
        line,
        f"{what} of more than {most >> 20} MiB",
        expected="less of it at once",
        remedy="check the file, or split it",
    )


def not_text(path: Path, line: int, error: UnicodeDecodeError) -> SourceFileError:
    """The error of a line that is not UTF-8."""
    return SourceFileError(
        path,
        line,
        f"bytes that are not UTF-8 ({error.reason})",
        expected="UTF-8 text",
        remedy="convert the file",
    )


def read_json(path: Path, *, expected: str, remedy: str) -> Any:
    """Parse a whole JSON file; raises `SourceFileError` with the line where it stops being JSON."""
    try:
        with open_bytes(path) as stream:
            raw = stream.read(_LARGEST_JSON + 1)
        if len(raw) > _LARGEST_JSON:
            raise _too_large(path, 0, "JSON", _LARGEST_JSON)
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise not_text(path, error.object[: error.start].count(b"\n") + 1, error) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if not text.strip():
        raise SourceFileError(path, 0, "an empty file", expected=expected, remedy=remedy)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise SourceFileError(path, line, f"not JSON ({error})", expected=expected, remedy=remedy) from error
