"""Shared parts of file readers: text, JSON and CSV with the line of every row, and the regions of zones.

Files may be plain or compressed. Errors name the line where a file becomes unreadable.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from slackwater.warehouse.columns import because
from slackwater.warehouse.errors import SourceFileError
from slackwater.warehouse.sources.contract import (
    NOT_UTF8,
    Batch,
    OptionsT,
    SourceOptions,
    help_of,
    is_text,
    read_options,
    rejected_batch,
)

#: A file without a usable row in its first lines is refused after this many rejected rows.
HOPELESS_ROWS = 10_000
_HEAD_BYTES = 8192
#: Maximum length of a line in bytes: a small compressed file may unpack to more than the memory.
_LONGEST_LINE = 64 << 20
#: Decimal digits of a 64-bit integer.
_LONGEST_INT = 19
_LARGEST_JSON = 512 << 20
_BLOCK_BYTES = 8 << 20
_RECODED_BYTES = 1 << 16


class FileSource(ABC, Generic[OptionsT]):
    """Base class of file formats; a subclass defines how its files are recognised, and their rows.

    ``form``: model of its options. ``expected``: description of the format. ``examples``: the
    smallest file of each form, by name.
    """

    has_files = True
    name: str
    #: Zone of times without offset: "UTC" if the format documents it, else "".
    zone = "UTC"
    form: type[OptionsT]
    expected: str
    remedy: str = "name another source"
    examples: Mapping[str, str]

    @property
    def options(self) -> Mapping[str, str]:
        """Return option name -> help text."""
        return help_of(self.form)

    def files(self, paths: Sequence[Path]) -> list[Path]:
        """Return the files named, and recognised files in folders (recursively), sorted; raises `SourceFileError` if none."""
        return collect(paths, self.recognised, source=self.name, expected=self.expected)

    def read(self, path: Path, options: SourceOptions) -> Iterator[Batch]:
        """Yield the rows of a file; raises `SourceFileError` if it has no row of this format."""
        read = read_options(self.name, self.form, options.values)
        batches = self.batches(path, read)
        return require_rows(batches, path, expected=self.expected, remedy=self.remedy)

    def assumptions(self, path: Path, options: SourceOptions) -> tuple[str, ...]:
        """Return sentences on the assumptions made for a file."""
        return tuple(self.assumed(path, read_options(self.name, self.form, options.values)))

    def time_zone(self, path: Path, options: SourceOptions) -> str:
        """Return the zone of times without offset; "" if they are rejected."""
        return self.zone

    @abstractmethod
    def recognised(self, path: Path) -> bool:
        """Return whether a file in a folder has this format, by its name and its first bytes."""

    @abstractmethod
    def batches(self, path: Path, options: OptionsT) -> Iterator[Batch]:
        """Return the rows of a file as found; raises `SourceFileError` if it does not have this format."""

    def assumed(self, path: Path, options: OptionsT) -> Iterable[str]:
        """Return sentences on the assumptions made for a file; none if every record is explicit."""
        return ()

    def wrong(self, path: Path, line: int, found: str) -> SourceFileError:
        """Return the error for a file that does not have this format, found at a line."""
        return SourceFileError(path, line, found, expected=self.expected, remedy=self.remedy)


def require_rows(batches: Iterable[Batch], path: Path, *, expected: str, remedy: str) -> Iterator[Batch]:
    """Pass on batches, but refuse a file without any usable row.

    Rejected batches are buffered until the first usable row. Raises `SourceFileError` with the first rejected
    line if the file ends, or `HOPELESS_ROWS` rows were rejected, before a usable row.
    """
    held: list[Batch] = []
    good, hopeless = False, 0
    for batch in batches:
        if not good and batch.kind == "rejected":
            held.append(batch)
            # A line with an unknown name still has the right format.
            hopeless += sum(not reason.startswith("unknown ") for reason in batch.table["reason"].to_pylist())
            if hopeless >= HOPELESS_ROWS:
                break
            continue
        if not good and batch.table.num_rows:
            good = True
            yield from held
        if batch.table.num_rows:
            yield batch
    if good:
        return
    if not held:
        raise SourceFileError(path, 0, "no record in the file", expected=expected, remedy=remedy)
    first = held[0].table.slice(0, 1).to_pylist()[0]
    found = f"{first['reason']}, and no other line can be used"
    raise SourceFileError(path, int(first["line"]), found, expected=expected, remedy=remedy)


#: First bytes of a compressed file -> codec; a file that is compressed only by its name is read unchanged.
_PACKED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
#: First bytes of archives -> description and remedy.
_ARCHIVES = {
    b"PK\x03\x04": ("a ZIP archive or an Excel workbook", "unpack it, or save the sheet as CSV"),
    b"\xfd7zXZ": ("an XZ archive", "unpack it with `xz -d`"),
}
_UTF16 = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


def open_bytes(path: Path) -> io.BufferedReader:
    """Open a file for reading as UTF-8 without a byte order mark; raises `SourceFileError`.

    gzip, Zstandard and bzip2 are recognised by the first bytes and decompressed; UTF-16 with a byte
    order mark (PowerShell) is converted, and so are lines that end with a carriage return alone (old
    exports of a Mac).
    """
    try:
        if path.is_dir():
            raise SourceFileError(path, 0, "a folder", expected="a file")
        with path.open("rb") as plain:
            first = plain.read(6)
        for magic, (found, remedy) in _ARCHIVES.items():
            if first.startswith(magic):
                raise SourceFileError(path, 0, found, expected="text, or text as .gz or .zst", remedy=remedy)
        packed = next((name for magic, name in _PACKED.items() if first.startswith(magic)), None)
        stream = io.BufferedReader(pa.input_stream(str(path), compression=packed))
        start = stream.peek(3)
        if start.startswith(codecs.BOM_UTF8):
            stream.read(len(codecs.BOM_UTF8))
        elif (encoding := _UTF16.get(start[:2])) is not None:
            stream.read(2)
            return io.BufferedReader(_RecodedStream(stream, encoding, "surrogatepass"))
        if b"\r" in start and b"\n" not in start:
            return io.BufferedReader(_LineFeeds(stream))
    except (OSError, pa.ArrowInvalid) as error:
        raise unreadable(path, error) from error
    return stream


class _LineFeeds(io.RawIOBase):
    """Stream of bytes with line feeds in place of carriage returns."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(data)] = data
        return len(data)


class _RecodedStream(io.RawIOBase):
    """Stream of text in another encoding as UTF-8; ``errors`` is the handler of bytes that are not of the encoding."""

    def __init__(self, stream: io.BufferedReader, encoding: str, errors: str) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder(encoding)(errors)
        self._ready, self._ended = b"", False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self._ended:
            data = self._stream.read(max(len(buffer), _RECODED_BYTES))
            self._ended = not data
            try:
                text = self._decoder.decode(data, final=self._ended)
            except UnicodeDecodeError:  # an odd byte at the end
                text = ""
            # An unpaired surrogate becomes invalid UTF-8, so only its row is rejected.
            self._ready = text.encode("utf-8", "surrogatepass")
        found = self._ready[: len(buffer)]
        buffer[: len(found)] = found
        self._ready = self._ready[len(found) :]
        return len(found)


def unreadable(path: Path, error: BaseException) -> SourceFileError:
    """Return the error for a file that the system cannot open or decompress."""
    return SourceFileError(
        path, 0, f"cannot be read ({error})", expected="a readable file", remedy="check it is complete"
    )


def head(path: Path) -> bytes:
    """Return the first bytes of a file, b"" if it cannot be read (used to recognise formats in folders)."""
    try:
        with open_bytes(path) as stream:
            return stream.read(_HEAD_BYTES)
    except (SourceFileError, OSError):
        return b""


def collect(
    paths: Sequence[Path], recognised: Callable[[Path], bool], *, source: str, expected: str
) -> list[Path]:
    """Return the files of ``paths`` and recognised files of folders, sorted; raises `SourceFileError` if none or missing."""
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
    """Yield (1-based line, text without line end) of a UTF-8 file; invalid bytes are decoded as "surrogateescape"."""
    number = 0
    try:
        with open_bytes(path) as stream:
            lines = iter(lambda: stream.readline(_LONGEST_LINE + 1), b"")
            for number, raw in enumerate(lines, start=1):
                if len(raw) > _LONGEST_LINE:
                    raise _too_large(path, number, "a line", _LONGEST_LINE)
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                yield number, raw.decode(encoding, "surrogateescape").rstrip("\r\n")
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


def not_text(path: Path, line: int) -> SourceFileError:
    """Return the error for a file that is unusable because of a line that is not UTF-8."""
    return SourceFileError(path, line, NOT_UTF8, expected="UTF-8 text", remedy="convert the file")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLine:
    """A line that is no JSON, with the reason."""

    raw: str
    reason: str


def read_json_values(path: Path, *, expected: str, remedy: str) -> Iterator[Any]:
    """Yield each JSON value of a file: a single value, several in sequence, or one per line.

    In a file with a value per line, a line that is no JSON becomes a `BadLine`; the other lines are
    read. Invalid UTF-8 is decoded as "surrogateescape"; `pack` then rejects only the row with this text.
    Raises `SourceFileError` with the line where the file stops being JSON.
    """
    text = _whole_text(path, expected, remedy)
    rows = [row for row in text.split("\n") if row.strip()]
    if len(rows) > 1 and _is_json(rows[0]):
        for row in rows:
            try:
                yield loads(row)
            except (ValueError, RecursionError) as error:
                yield BadLine(raw=row, reason=because("line.not_json", error))
        return
    try:
        yield from _all_values(text)
    except (ValueError, RecursionError) as error:
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        if isinstance(error, json.JSONDecodeError) and not is_text(text[: error.pos + 1]):
            raise not_text(path, line) from error
        raise SourceFileError(path, line, f"not JSON ({error})", expected=expected, remedy=remedy) from error


def read_json(path: Path, *, expected: str, remedy: str) -> Any:
    """Return the JSON value of a file with a single one; raises `SourceFileError` for a file with several."""
    values = list(read_json_values(path, expected=expected, remedy=remedy))
    if len(values) != 1:
        raise SourceFileError(path, 1, f"{len(values)} JSON values", expected=expected, remedy=remedy)
    return values[0]


def _whole_text(path: Path, expected: str, remedy: str) -> str:
    try:
        with open_bytes(path) as stream:
            raw = stream.read(_LARGEST_JSON + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(raw) > _LARGEST_JSON:
        raise _too_large(path, 0, "JSON", _LARGEST_JSON)
    text = raw.decode("utf-8", "surrogateescape")
    if not text.strip():
        raise SourceFileError(path, 0, "an empty file", expected=expected, remedy=remedy)
    return text


def _whole_number(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_INT else digits


_DECODER = json.JSONDecoder(parse_int=_whole_number)
_EXCEL_SEPARATOR = re.compile(r"sep=.?", re.IGNORECASE)
_SPACE = re.compile(r"[\s,]*")


def _all_values(text: str) -> list[Any]:
    found = []
    start = _after_space(text, 0)
    while start < len(text):
        value, end = _DECODER.raw_decode(text, start)
        found.append(value)
        start = _after_space(text, end)
    return found


def _after_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return match.end() if match is not None else start


def _is_json(text: str) -> bool:
    try:
        loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def loads(text: str) -> Any:
    """Parse JSON; whole numbers beyond 64 bits become text, so that only their row is rejected, not the file.

    >>> loads('[1, 2.5]'), len(loads("9" * 5000))
    ([1, 2.5], 5000)
    """
    return json.loads(text, parse_int=_whole_number)


#: Marks a byte that is not UTF-8, which is written as ``\\xff`` after it, since Arrow accepts only
#: text. It is a noncharacter.
_MARK = "\U0010ffff"


def _mark_bytes(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(f"{_MARK}\\x{byte:02x}" for byte in found), error.end


codecs.register_error("slackwater.marked", _mark_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvChunk:
    """Rows of a CSV file: text columns by name, the line of every row (int64), and lines that do not fit the columns."""

    columns: dict[str, pa.Array]
    lines: pa.Array
    rejected: tuple[tuple[int, str, str], ...]

    def __len__(self) -> int:
        return len(self.lines)

    def rejected_batch(self, path: Path) -> Batch:
        """Return the lines that could not be parsed as a ``rejected`` batch."""
        return rejected_batch(path, self.rejected)


def csv_chunks(
    path: Path,
    *,
    check_header: Callable[[Sequence[str]], None],
    names: Sequence[str] | None = None,
    delimiter: str = ",",
) -> Iterator[CsvChunk]:
    """Stream a delimited file as text columns in chunks of about 8 MB; Arrow parses all rows.

    ``names``: columns of a file without header. ``check_header`` receives the column names and
    raises if the file is not the expected format. Lines with a different number of fields, and
    lines that are not UTF-8, are returned in ``rejected`` with their number.
    """
    # Arrow numbers the lines that it cannot parse only in single-threaded mode.
    invalid: list[tuple[int, str, str]] = []

    def skip(row: pacsv.InvalidRow) -> str:
        reason = because("line.fields", row.actual_columns, row.expected_columns)
        invalid.append((int(row.number), str(row.text), reason))
        return "skip"

    try:
        header, skipped = (list(names), 0) if names else _header(path, delimiter)
        check_header(header)
        with open_bytes(path) as stream:
            reader = pacsv.open_csv(
                _RecodedStream(stream, "utf-8", "slackwater.marked"),
                read_options=pacsv.ReadOptions(
                    use_threads=False, block_size=_BLOCK_BYTES, column_names=header, skip_rows=skipped
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=delimiter, invalid_row_handler=skip, ignore_empty_lines=False
                ),
                convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(header, pa.string())),
            )
            numbering = _LineNumbers(first=skipped + 1)
            for record in reader:
                yield numbering.chunk(record, invalid, delimiter)
            if invalid:
                yield CsvChunk(columns={}, lines=pa.array([], pa.int64()), rejected=numbering.take(invalid))
    except (pa.ArrowInvalid, OSError) as error:
        raise _csv_error(path, error) from error


def header_of(path: Path) -> tuple[list[str], str]:
    """Return the fields of the header, the first line that is not empty, and the delimiter with most occurrences in it."""
    lines = head(path).decode("utf-8", "replace").splitlines()
    line = next((line for line in lines if not _before_header(line)), "")
    delimiter = max(",;\t|", key=line.count)
    return [name.strip().strip('"') for name in line.split(delimiter)], delimiter


def _before_header(line: str) -> bool:
    """Return whether a line may stand before the header: an empty line, or the ``sep=;`` of Excel."""
    return not line.strip() or bool(_EXCEL_SEPARATOR.fullmatch(line.strip()))


def column_names_text(names: Sequence[str]) -> str:
    """Return column names for a message: the first few, without control characters."""
    text = ", ".join(names[:12])
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


MOST_COLUMNS = 1000  # Maximum number of columns of a table; even an empty column needs an array


def _header(path: Path, delimiter: str) -> tuple[list[str], int]:
    """Return the column names and the line that has them."""
    for line, text in numbered_lines(path):
        if _before_header(text):
            continue
        if not is_text(text):
            raise not_text(path, line)
        # A header needs no quotes inside its names; a repeated name makes Arrow's columns ambiguous.
        names = [name.strip().strip('"') for name in text.split(delimiter)]
        if len(names) > MOST_COLUMNS:
            raise SourceFileError(
                path,
                line,
                f"{len(names):,} columns",
                expected=f"at most {MOST_COLUMNS:,} columns",
                remedy="delete the empty columns",
            )
        return names, line
    raise SourceFileError(
        path, 0, "an empty file", expected="a header line and rows", remedy="export it again"
    )


def _csv_error(path: Path, error: Exception) -> SourceFileError:
    if "Empty CSV" in str(error):
        return SourceFileError(
            path, 0, "no row in the file", expected="rows", remedy="check that it is complete"
        )
    return SourceFileError(
        path,
        0,
        f"cannot be read as CSV ({error})",
        expected="delimited text with closed quotes",
        remedy="check that it is complete and its quotes are closed",
    )


@dataclass(slots=True)
class _LineNumbers:
    """Assigns line numbers to the rows of successive chunks; rejects rows that span lines (an unclosed quote) line by line."""

    first: int
    extra: int = 0

    def take(self, invalid: list[tuple[int, str, str]]) -> tuple[tuple[int, str, str], ...]:
        """Return the remaining unusable rows, which no usable row follows, line by line."""
        rejected: list[tuple[int, str, str]] = []
        for number, raw, reason in invalid:
            rejected += _reject_lines(number + self.extra, raw, reason)
            self.extra += raw.count("\n")
        invalid.clear()
        return tuple(rejected)

    def chunk(self, record: pa.RecordBatch, invalid: list[tuple[int, str, str]], delimiter: str) -> CsvChunk:
        """Number the rows of ``record``; ``invalid`` contains the unusable rows up to its end, and some after it."""
        skipped = np.fromiter((n for n, _, _ in invalid), dtype=np.int64, count=len(invalid))
        candidates = np.arange(self.first, self.first + record.num_rows + len(invalid), dtype=np.int64)
        rows = candidates[~np.isin(candidates, skipped)][: record.num_rows]
        if len(rows):
            self.first = int(rows[-1]) + 1
        before = [entry for entry in invalid if entry[0] < self.first]
        invalid[:] = [entry for entry in invalid if entry[0] >= self.first]
        breaks = _line_breaks(record)
        lines, starts = self._lines(rows, breaks, before)
        rejected: list[tuple[int, str, str]] = []
        for start, (_, raw, reason) in zip(starts, before, strict=True):
            rejected += _reject_lines(start, raw, reason)
        marked, headers = _with_mark(record), _is_header(record)
        keep = (breaks == 0) & ~_empty(record) & ~marked & ~headers
        for i in np.flatnonzero(~keep):
            text = delimiter.join(str(column[int(i)].as_py()) for column in record.columns)
            reason = (
                because("line.header") if headers[i] else NOT_UTF8 if marked[i] else because("line.empty")
            )
            rejected += _reject_lines(int(lines[i]), text if text.strip(delimiter) else "", reason)
        if not keep.all():
            record, lines = record.filter(pa.array(keep)), lines[keep]
        columns = dict(zip(record.schema.names, record.columns, strict=True))
        return CsvChunk(columns=columns, lines=pa.array(lines), rejected=tuple(sorted(rejected)))

    def _lines(
        self, rows: np.ndarray, breaks: np.ndarray, before: list[tuple[int, str, str]]
    ) -> tuple[np.ndarray, list[int]]:
        """Return the first line of every usable and every unusable row, from their numbers and the line breaks inside rows."""
        numbers = np.concatenate([rows, np.array([n for n, _, _ in before], dtype=np.int64)])
        inside = np.concatenate([breaks, np.array([raw.count("\n") for _, raw, _ in before], dtype=np.int64)])
        order = np.argsort(numbers, kind="stable")
        shift = np.empty_like(inside)
        shift[order] = np.cumsum(inside[order]) - inside[order]
        lines = numbers + shift + self.extra
        self.extra += int(inside.sum())
        return lines[: len(rows)], [int(n) for n in lines[len(rows) :]]


def _line_breaks(record: pa.RecordBatch) -> np.ndarray:
    total = np.zeros(record.num_rows, dtype=np.int64)
    for column in record.columns:
        total += pc.count_substring(column, "\n").to_numpy(zero_copy_only=False)
    return total


def _with_mark(record: pa.RecordBatch) -> np.ndarray:
    marked = np.zeros(record.num_rows, dtype=bool)
    for column in record.columns:
        marked |= pc.match_substring(column, _MARK).to_numpy(zero_copy_only=False)
    return marked


def _empty(record: pa.RecordBatch) -> np.ndarray:
    empty = np.ones(record.num_rows, dtype=bool)
    for column in record.columns:
        empty &= pc.equal(column, "").to_numpy(zero_copy_only=False)
    return empty


def _is_header(record: pa.RecordBatch) -> np.ndarray:
    """Return which rows repeat the names of the columns, as where files were joined."""
    same = np.ones(record.num_rows, dtype=bool)
    for name, column in zip(record.schema.names, record.columns, strict=True):
        same &= pc.equal(pc.utf8_trim_whitespace(column), name).to_numpy(zero_copy_only=False)
        if not same.any():
            break
    return same


def _reject_lines(line: int, text: str, reason: str) -> list[tuple[int, str, str]]:
    """Return a rejected line for each line of the text; a row with several lines has an unclosed quote."""
    parts = text.split("\n")
    if len(parts) > 1:
        reason = because("line.open_quote", line, len(parts))
    return [
        (line + i, part.rstrip("\r").replace(_MARK, ""), NOT_UTF8 if _MARK in part else reason)
        for i, part in enumerate(parts)
    ]


# ---
# Zones of AWS and Google Cloud.

AWS_REGION = r"(?:[a-z]{2}(?:-gov|-iso[a-z]?)?|eusc-[a-z]{2})-[a-z]+-\d"
#: Including local zones (us-west-2-lax-1a) and Wavelength zones (us-east-1-wl1-bos-wlz-1).
_AWS_ZONE = re.compile(rf"^({AWS_REGION})(?:(?:-[a-z]{{3}}-\d+)?[a-z]|-wl\d+-[a-z]{{3}}-wlz-\d+)$")
_GCP_ZONE = re.compile(r"^([a-z]+-[a-z]+\d+)-[a-z]$")


def region_of(zone: str) -> tuple[str, str] | None:
    """Return (provider, region) of an AWS or Google Cloud zone name, None if it is neither.

    >>> region_of("us-west-2a"), region_of("us-east1-c"), region_of("moon")
    (('aws', 'us-west-2'), ('gcp', 'us-east1'), None)
    """
    if match := _AWS_ZONE.match(zone):
        return "aws", match[1]
    if match := _GCP_ZONE.match(zone):
        return "gcp", match[1]
    return None
