"""Delimited files streamed through Arrow, with the line every row stands on and the lines that cannot be taken apart."""

from __future__ import annotations

import codecs
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from warehouse.errors import SourceFileError
from warehouse.source import Batch
from warehouse.sources.batches import batch_of
from warehouse.sources.textfiles import not_text, numbered_lines, open_bytes

_BLOCK_BYTES = 8 << 20


class _CheckedText(io.RawIOBase):
    """Bytes passed on after a check that they are UTF-8: Arrow loses the line of those that are not."""

    def __init__(self, stream: io.BufferedReader, path: Path) -> None:
        self._stream, self._path, self._lines = stream, path, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        try:
            self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            line = self._lines + error.object[: error.start].count(b"\n") + 1
            raise not_text(self._path, line, error) from error
        self._lines += data.count(b"\n")
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvChunk:
    """Some rows of a CSV file: text columns by name, the line of every row (int64), and lines that have no such columns."""

    columns: dict[str, pa.Array]
    lines: pa.Array
    rejected: tuple[tuple[int, str, str], ...]

    def __len__(self) -> int:
        return len(self.lines)

    def rejected_batch(self, path: Path) -> Batch:
        """The lines that could not be taken apart, as a ``rejected`` batch."""
        return rejected_batch(path, self.rejected)


def rejected_batch(path: Path, rejected: Sequence[tuple[int, str, str]]) -> Batch:
    """A ``rejected`` batch of (line, raw text, reason) triples."""
    lines, raw, reasons = zip(*rejected, strict=True) if rejected else ((), (), ())
    return batch_of(
        "rejected", len(rejected), {"file": str(path), "line": lines, "raw": raw, "reason": reasons}
    )


def csv_chunks(
    path: Path,
    *,
    check_header: Callable[[Sequence[str]], None],
    names: Sequence[str] | None = None,
    delimiter: str = ",",
) -> Iterator[CsvChunk]:
    """Stream a delimited file as text columns in chunks of about 8 MB; no row is handled in Python.

    ``names`` are the columns of a file without a header. ``check_header`` gets the column names and raises if the
    file is not the wanted one. Lines with another number of fields come back in ``rejected`` with their number.
    """
    # One thread: only then does Arrow number the lines it cannot take apart.
    invalid: list[tuple[int, str, str]] = []

    def skip(row: pacsv.InvalidRow) -> str:
        reason = f"{row.actual_columns} fields where {row.expected_columns} were expected"
        invalid.append((int(row.number), str(row.text), reason))
        return "skip"

    try:
        header = list(names) if names else _header(path, delimiter)
        check_header(header)
        with open_bytes(path) as stream:
            reader = pacsv.open_csv(
                _CheckedText(stream, path),
                read_options=pacsv.ReadOptions(
                    use_threads=False,
                    block_size=_BLOCK_BYTES,
                    column_names=header,
                    skip_rows=0 if names else 1,
                ),
                parse_options=pacsv.ParseOptions(
                    delimiter=delimiter, invalid_row_handler=skip, ignore_empty_lines=False
                ),
                convert_options=pacsv.ConvertOptions(column_types=dict.fromkeys(header, pa.string())),
            )
            numbering = _LineNumbers(first=1 if names else 2)
            for record in reader:
                yield numbering.chunk(record, invalid, delimiter)
            if invalid:
                yield CsvChunk(columns={}, lines=pa.array([], pa.int64()), rejected=numbering.take(invalid))
    except (pa.ArrowInvalid, OSError) as error:
        raise _csv_error(path, error) from error


def shown(names: Sequence[str]) -> str:
    """Column names as they can stand in a message: the first few, without control characters."""
    text = ", ".join(names[:12])
    return "".join(c if c.isprintable() else "?" for c in text)[:200]


def _header(path: Path, delimiter: str) -> list[str]:
    for _, text in numbered_lines(path):
        # A header needs no quotes inside its names; a repeated name makes Arrow's columns ambiguous.
        return [name.strip().strip('"') for name in text.split(delimiter)]
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
    """Gives every row of successive chunks its line; rows spanning lines (an unclosed quote) are rejected line by line."""

    first: int
    extra: int = 0

    def take(self, invalid: list[tuple[int, str, str]]) -> tuple[tuple[int, str, str], ...]:
        """Lines of the unusable rows that no usable one follows."""
        rejected: list[tuple[int, str, str]] = []
        for number, raw, reason in invalid:
            rejected += _split(number + self.extra, raw, reason)
            self.extra += raw.count("\n")
        invalid.clear()
        return tuple(rejected)

    def chunk(self, record: pa.RecordBatch, invalid: list[tuple[int, str, str]], delimiter: str) -> CsvChunk:
        """Number the rows of ``record``; ``invalid`` holds the unusable rows up to its end, and some beyond."""
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
            rejected += _split(start, raw, reason)
        keep = (breaks == 0) & ~_empty(record)
        for i in np.flatnonzero(~keep):
            text = delimiter.join(str(column[int(i)].as_py()) for column in record.columns)
            rejected += _split(int(lines[i]), text if text.strip(delimiter) else "", "empty line")
        if not keep.all():
            record, lines = record.filter(pa.array(keep)), lines[keep]
        columns = dict(zip(record.schema.names, record.columns, strict=True))
        return CsvChunk(columns=columns, lines=pa.array(lines), rejected=tuple(sorted(rejected)))

    def _lines(
        self, rows: np.ndarray, breaks: np.ndarray, before: list[tuple[int, str, str]]
    ) -> tuple[np.ndarray, list[int]]:
        """First line of every usable and every unusable row, from their numbers and the line breaks inside rows."""
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


def _empty(record: pa.RecordBatch) -> np.ndarray:
    empty = np.ones(record.num_rows, dtype=bool)
    for column in record.columns:
        empty &= pc.equal(column, "").to_numpy(zero_copy_only=False)
    return empty


def _split(line: int, text: str, reason: str) -> list[tuple[int, str, str]]:
    """One rejected line per line of the text; several lines in one row come from a quote that is not closed."""
    parts = text.split("\n")
    if len(parts) > 1:
        reason = f"a quote opened in line {line} runs over {len(parts)} lines"
    return [(line + i, part.rstrip("\r"), reason) for i, part in enumerate(parts)]
